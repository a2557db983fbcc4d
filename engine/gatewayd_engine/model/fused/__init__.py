"""The fused step of a decoder on a CPU."""
