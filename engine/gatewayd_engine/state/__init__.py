"""Sequences, the queue, the running batch, and inputs and results of a step."""
