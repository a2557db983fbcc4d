"""The table of request fields: one source for validation, OpenAPI, docs/api.md and fuzzing."""
