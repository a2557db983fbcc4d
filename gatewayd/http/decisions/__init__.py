"""``/v1/decisions``: questions answered by the likelihood of their labels."""
