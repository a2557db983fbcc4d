"""GGUF checkpoints, as llama.cpp writes them, next to a Hugging Face config.json."""
