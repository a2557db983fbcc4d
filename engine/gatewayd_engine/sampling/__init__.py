"""Sampling: logits processors, filters, random numbers, draft verification, log-probabilities."""
