"""What a policy may call while it speaks: blocks that take `source` and return a function from a query to a text,
or, for `match`, from a task to a game under way.

A tool answers every query, a malformed one too, and never raises for what the policy wrote. No programs, tasks or rewards here.
"""
