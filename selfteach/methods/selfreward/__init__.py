"""Methods of the family selfreward."""
