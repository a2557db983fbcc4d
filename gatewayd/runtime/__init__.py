"""Process-level settings: processor count, malloc, the garbage collector."""
