"""The process boundary: configuration, messages, frames, logs, threads, plugin faults."""
