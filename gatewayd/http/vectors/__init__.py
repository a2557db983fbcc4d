"""Embeddings, rerank and score: routes that answer with vectors."""
