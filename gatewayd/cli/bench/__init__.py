"""Load generation against OpenAI-compatible servers, and benchmarks of the engine."""
