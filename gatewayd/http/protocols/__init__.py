"""Routes of protocol plugins, such as Anthropic's and Ollama's APIs."""
