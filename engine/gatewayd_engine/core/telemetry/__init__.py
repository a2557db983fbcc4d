"""Step accounting and inspection: where time went, engine seconds, the prefix tree."""
