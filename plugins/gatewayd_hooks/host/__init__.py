"""Plugin host for processes: finds, loads, watches and times plugins. Not for use by plugins."""
