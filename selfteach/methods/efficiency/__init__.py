"""Methods of the family efficiency."""
