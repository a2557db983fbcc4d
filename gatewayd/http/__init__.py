"""The OpenAI-compatible HTTP side: edge, routes, request tables, answers."""
