"""Decode attention kernels over pages, in Triton and in torch."""
