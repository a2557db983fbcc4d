"""Quality of quantized weights and KV: ``python -m gatewayd_engine.offline.quality``."""
