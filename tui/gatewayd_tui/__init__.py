"""Terminal console: a client of the admin API, independent of engine and store."""
