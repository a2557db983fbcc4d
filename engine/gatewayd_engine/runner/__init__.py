"""Model runners: forward pass, logits and sampling of a step, on a CPU or a GPU."""
