"""Terminal chat with a running server."""
