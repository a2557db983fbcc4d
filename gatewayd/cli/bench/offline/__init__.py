"""``gatewayd bench offline``: the fixed workloads, through an engine process without a daemon."""
