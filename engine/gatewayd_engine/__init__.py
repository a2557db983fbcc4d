"""The inference engine: token ids in, token ids out; the only package that imports torch."""
