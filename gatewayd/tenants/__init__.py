"""Tenants: who may come in, how much they may use, what it costs, and who changed it."""
