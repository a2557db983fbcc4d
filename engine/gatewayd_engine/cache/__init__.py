"""Reuse of computed KV: prefix cache, page keys, operator pins, offload to KV tiers."""
