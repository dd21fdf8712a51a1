"""Floor 2: text → documents → token shards → packed batches. Only `loader` needs torch."""
