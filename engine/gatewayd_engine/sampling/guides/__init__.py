"""Guided decoding: grammars compiled beside the steps, and what they allow of each row's tokens."""
