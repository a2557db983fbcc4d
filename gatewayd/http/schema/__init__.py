"""Request schemas: single source for validation, OpenAPI, docs/api and fuzzing."""
