"""Attention over the paged KV pool: one Protocol, one file per backend."""
