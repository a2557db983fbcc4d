"""``/v1/decisions``: questions answered by the probabilities of their labels."""
