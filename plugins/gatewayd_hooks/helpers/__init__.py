"""Helpers for plugin authors, by the kinds that share them."""
