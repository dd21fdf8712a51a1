"""Floor 1: strings and token ids, both ways. No torch."""
