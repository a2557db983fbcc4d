"""Tokenizer, chat template, detokenizer and stop strings, independent of HTTP."""
