"""Responses: `/v1/responses` over the gateway's own chat, kept in the store."""
