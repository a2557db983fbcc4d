"""Paged decode attention kernels, in Triton and in torch."""
