"""An engine replica: process, restarts, heartbeat, and its requests."""
