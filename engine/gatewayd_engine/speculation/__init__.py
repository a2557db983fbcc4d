"""Speculative decoding: drafters, their models, and the controller."""
