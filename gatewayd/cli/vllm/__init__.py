"""vLLM's option names for ``gatewayd serve``: their table, conversion and documentation."""
