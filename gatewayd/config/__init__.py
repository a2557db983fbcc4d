"""Configuration: keys with their bounds, sources of values, defaults by device."""
