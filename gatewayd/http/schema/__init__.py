"""The table of request fields: one source for validation, OpenAPI, docs/api and fuzzing."""
