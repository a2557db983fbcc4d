"""One engine replica: its process, start and restart, heartbeat, and the requests it has."""
