"""``gatewayd bench offline``: fixed workloads on an engine process without a daemon."""
