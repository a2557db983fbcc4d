"""Builds and runs the daemon: composition, resources, reload, systemd."""
