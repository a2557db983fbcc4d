"""Budgets, prices and usage: reservations, settlements, recovery after a crash."""
