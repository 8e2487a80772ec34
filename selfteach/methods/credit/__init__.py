"""Methods of the family credit."""
