"""Expansion of a GGUF file's metadata into the files of a Hugging Face checkpoint."""
