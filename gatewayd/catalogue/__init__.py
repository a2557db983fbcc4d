"""Catalogue of targets: every name that requests may give as their model, and what serves it."""
