"""Embeddings, rerank and score: routes based on pooled hidden states."""
