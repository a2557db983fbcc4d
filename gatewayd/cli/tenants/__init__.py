"""Commands for tenants, API keys, prices and usage."""
