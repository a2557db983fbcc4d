"""Training of the embedded models: corpus, tokenizer, models, draft heads, predictor."""
