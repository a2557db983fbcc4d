"""Engines behind the gateway: replicas, supervision, queueing and dispatch of requests."""
