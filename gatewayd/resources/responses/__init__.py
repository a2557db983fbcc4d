"""Responses: `/v1/responses` on top of chat completions, persisted in the store."""
