"""The runner for a GPU: rows on the device, captured decode steps, results that come later."""
