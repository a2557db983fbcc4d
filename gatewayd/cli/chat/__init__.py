"""A terminal chat with a running server."""
