"""Floor 2: what a machine does, measured."""
