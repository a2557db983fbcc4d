"""Checkpoints as llama.cpp writes them, beside Hugging Face's description of the model."""
