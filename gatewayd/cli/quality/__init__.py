"""``gatewayd quality``: accuracy and memory of weight quantization and KV cache schemes."""
