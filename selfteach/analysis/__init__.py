"""Analysis of finished runs: statistics, tables, charts and the ledger, from figures and logs.

Pure functions; nothing here starts a run. matplotlib is imported only where a chart is drawn.
"""
