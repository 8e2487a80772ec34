"""Methods of the family treesearch."""
