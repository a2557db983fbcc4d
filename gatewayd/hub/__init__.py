"""Models of the Hugging Face Hub: references, the local store, and downloads."""
