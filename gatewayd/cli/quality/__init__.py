"""``gatewayd quality``: accuracy and size of quantization and KV schemes."""
