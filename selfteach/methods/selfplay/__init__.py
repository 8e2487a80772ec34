"""Methods of the family selfplay."""
