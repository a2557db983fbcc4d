"""The paged KV pool: its tensor, the page allocator, and transfers to the host."""
