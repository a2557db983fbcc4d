"""From a plan to pages: admission, deferral, page growth, preemption."""
