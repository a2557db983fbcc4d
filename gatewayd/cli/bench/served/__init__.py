"""``gatewayd bench serve``: the served workloads, through a daemon of its own."""
