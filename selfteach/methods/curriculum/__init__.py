"""Methods of the family curriculum."""
