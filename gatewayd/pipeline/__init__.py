"""The life of a request between validation and its last byte, free of HTTP."""
