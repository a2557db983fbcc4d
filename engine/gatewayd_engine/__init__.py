"""Token ids in, token ids out: the engine. Torch lives here and only here."""
