"""The daemon under systemd: what it is given, what it says, what is written into the system."""
