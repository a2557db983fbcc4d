"""Structs of the admin API, shared by the daemon, its commands and the console."""
