"""Methods of the family preference."""
