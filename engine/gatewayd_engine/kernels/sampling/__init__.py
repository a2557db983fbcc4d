"""Sampling kernels: filters, Gumbel noise, penalties, masks, log-probabilities."""
