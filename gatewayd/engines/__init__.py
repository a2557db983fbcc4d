"""The engines behind the gateway: their replicas, supervision, and the way in for requests."""
