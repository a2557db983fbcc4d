"""What weights and keys of fewer bits cost in quality: ``python -m gatewayd_engine.offline.quality``."""
