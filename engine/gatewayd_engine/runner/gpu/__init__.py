"""GPU runner: batch rows on the device, CUDA graphs, asynchronous results."""
