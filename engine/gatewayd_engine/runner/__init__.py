"""Runs a step: forward pass, logits, sampling, on a CPU or a GPU."""
