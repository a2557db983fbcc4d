"""KV tiers behind the pool: the chain of tiers, and the fingerprint of compatible engines."""
