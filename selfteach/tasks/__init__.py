"""What is asked: functions under `@task` that return a Source, and the generators they share.

A task owns its questions, gold answers, demonstrations and documents, all drawn by address. No rewards, no programs, no models, no
networks: what is right about an answer is said here as data, and judged elsewhere.
"""
