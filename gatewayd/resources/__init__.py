"""Stored resources of clients: files, batches, responses, and their expiry."""
