"""Tenants: authentication, rate limits, budgets, billing and the audit log."""
