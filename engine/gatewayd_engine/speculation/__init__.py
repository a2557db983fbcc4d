"""Speculative decoding: drafters, draft models, and the controller."""
