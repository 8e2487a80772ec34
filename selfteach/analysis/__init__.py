"""Measurements on runs, and pictures and pages of them: pure functions from figures and logs to numbers, tables, charts and text.

Nothing here starts a run. matplotlib is imported only where a picture is drawn.
"""
