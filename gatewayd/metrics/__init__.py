"""Prometheus metrics of requests, engines, objectives, the store and tenants."""
