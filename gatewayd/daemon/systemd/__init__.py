"""Integration with systemd: notifications, watchdog, unit files, first configuration."""
