"""``gatewayd bench serve``: fixed workloads over HTTP on a daemon started for it."""
