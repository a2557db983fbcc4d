"""Runtime changes by operators, which override the configuration file until it changes."""
