"""Snapshots of the running daemon for the console: requests, pages, tenants, latencies."""
