"""Floor 9: the command line, one command per file."""
