"""OpenAI-compatible HTTP API: connections, routes, request schemas and responses."""
