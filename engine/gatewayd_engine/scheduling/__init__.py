"""From a scheduler's plan to KV pages: admission, deferral, page growth, preemption."""
