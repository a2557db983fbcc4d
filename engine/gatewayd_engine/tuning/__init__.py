"""Choices among implementations of one operation, measured on the machine and kept on disk."""
