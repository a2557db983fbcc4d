"""How the embedded models are made: corpus, tokenizer, training. Nothing else imports this."""
