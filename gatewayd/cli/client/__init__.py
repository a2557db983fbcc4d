"""Minimal client of OpenAI-compatible servers, for the benchmark and the terminal chat."""
