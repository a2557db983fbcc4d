"""Tracing: time ledgers that break down request latency by cause, and logging."""
