"""Methods of the family system."""
