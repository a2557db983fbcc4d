"""The admin console: a client of the admin API; it knows no engine and no store."""
