"""Settings of a model that config.json holds, and what its architecture fixes. No torch."""
