"""Floor 0: errors, choices, units, files. No torch."""
