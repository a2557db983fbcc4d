"""Plays the engine: queues, pages, batches and resources as strategies are shown them."""
