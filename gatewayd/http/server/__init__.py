"""The HTTP server: connections and their limits, authentication, errors, scheduling."""
