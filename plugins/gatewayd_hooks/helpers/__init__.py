"""What authors of plugins need not write again, by the kinds that share it."""
