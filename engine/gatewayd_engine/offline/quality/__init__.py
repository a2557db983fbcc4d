"""Quality of quantized weights and KV caches: ``python -m gatewayd_engine.offline.quality``."""
