"""The proving ground: functions under `@regime`, each a task with its options, a model, a warm start and a tuned
baseline, in which claims are measured.

Plain data. A regime is admitted with measured evidence on tuning seeds alone.
"""
