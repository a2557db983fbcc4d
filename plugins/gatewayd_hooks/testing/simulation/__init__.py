"""Simulated engine: queues, pages, batches and resources as passed to strategies."""
