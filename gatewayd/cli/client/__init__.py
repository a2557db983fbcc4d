"""A small client of OpenAI-compatible servers, for the bench and the terminal chat."""
