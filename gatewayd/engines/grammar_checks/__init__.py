"""Grammar checks: whether a request's grammar can be compiled within the limits."""
