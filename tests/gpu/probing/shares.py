"""The probe's parts by name, for the process that starts others: it imports no torch."""

SHARES = {
    "attention": 0.3,
    "latents": 0.05,
    "small": 0.1,
    "fused": 0.1,
    "products": 0.2,
    "packed": 0.12,
    "verifying": 0.08,
    "experts": 0.05,
}
"""Of the time, what is compiled included."""
