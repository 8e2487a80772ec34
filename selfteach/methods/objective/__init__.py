"""Methods of the family objective."""
