"""KV that need not be computed again: prefix cache, page keys, pins, offload to KV tiers."""
