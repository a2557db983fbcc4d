"""The paged KV pool: its tensor, and who holds which page."""
