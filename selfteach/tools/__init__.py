"""Tools that a policy calls during a rollout: blocks that take `source` and return a function from a query to a text.

`match` instead opens a game for a task, and `situations` gives the information sets of Kuhn poker. A tool answers every
query, a malformed one too, and never raises for what the policy wrote. No programs, tasks or rewards here.
"""
