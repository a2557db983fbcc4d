"""Admin API: operation of the daemon over a unix socket, apart from the data plane."""
