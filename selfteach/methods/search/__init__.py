"""Methods of the family search."""
