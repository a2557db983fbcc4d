"""Tracing: latency records that break down request latency by cause, and logging."""
