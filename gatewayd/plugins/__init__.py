"""The gateway's own plugins behind one fence: admission, router, parsers, observers."""
