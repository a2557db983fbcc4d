"""CPU kernels: packed matrix products, attention and whole steps, run by a team of threads."""
