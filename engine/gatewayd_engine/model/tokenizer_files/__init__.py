"""Tokenizers in other files than ``tokenizer.json``, read as untrusted data. Imports no torch."""
