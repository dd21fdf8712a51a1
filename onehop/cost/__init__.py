"""Floor 2: what a model costs, as arithmetic on its config. No torch."""
