"""Grammars that requests bring: what they ask for, and whether it can be compiled."""
