"""The active plugins of an engine, their defaults, and recovery from their faults."""
