"""Plugins of the gateway process, fenced: admission, router, executor, parsers, observers."""
