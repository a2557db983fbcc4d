"""Checkpoint loading: file headers, tensor names and shapes, shards, weights."""
