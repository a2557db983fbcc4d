"""Start of requests: at the model that they name, or at the targets of a route in turn."""
