"""The configuration: every key with its bounds, where values come from, defaults by device."""
