"""Request lifecycle between validation and the last byte, independent of HTTP."""
