"""Kinds about the targets of requests: which models are loaded, and routes between them."""
