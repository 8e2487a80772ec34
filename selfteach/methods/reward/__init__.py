"""Methods of the family reward."""
