"""Guided decoding: concurrent grammar compilation, and token masks of each row."""
