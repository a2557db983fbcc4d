"""Checkpoints to weights: headers, names and shapes of tensors, shards, loading."""
