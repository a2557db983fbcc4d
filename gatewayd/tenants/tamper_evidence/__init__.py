"""Seals and audit of the rows that authorize, so that edits are detected."""
