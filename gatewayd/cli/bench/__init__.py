"""Load generation against any OpenAI-compatible server, and what it measured."""
