"""Prometheus metrics of requests, engines, SLOs, the store and tenants."""
