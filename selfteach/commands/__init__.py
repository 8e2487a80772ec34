"""The commands of the command line, one module each: they read arguments, call the Python door, and show what came back. Nothing is computed here."""
