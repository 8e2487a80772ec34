"""Tasks: functions under `@task` that return a TaskSource, and the generators they share.

A task owns its questions, gold answers, demonstrations and documents, all drawn by RNG key. No rewards, no programs, no
models, no networks: what is right about an answer is given here as data, and scored elsewhere.
"""
