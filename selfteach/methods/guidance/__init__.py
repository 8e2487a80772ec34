"""Methods of the family guidance."""
