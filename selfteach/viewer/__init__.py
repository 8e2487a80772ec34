"""The local web page on which runs are read: curves, rollouts, trees, comparisons, the ledger."""
