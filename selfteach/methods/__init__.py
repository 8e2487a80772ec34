"""The papers, one file each, by family: what a paper changes, and nothing else. Only blocks, other methods and core are imported here."""
