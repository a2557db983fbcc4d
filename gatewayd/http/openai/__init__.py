"""OpenAI-compatible routes: chat, completions, models, tokenization, streaming."""
