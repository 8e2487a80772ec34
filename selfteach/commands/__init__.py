"""The commands of the command line, one module each.

They read arguments, call the Python API, and print the result; nothing is computed here.
"""
