"""The admin API: a unix socket for those who operate the daemon, apart from the data plane."""
