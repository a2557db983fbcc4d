"""Eight prompts that run together, and their expected answers."""

from __future__ import annotations

from typing import Any

PROMPTS = [[7 + i, *range(20, 60 + 3 * i)] for i in range(8)]


def answers(engine: Any, **fields: Any) -> list[list[int]]:
    """Each prompt's tokens."""
    ids = [engine.submit(p, max_tokens=12, ignore_eos=True, **fields)[0] for p in PROMPTS]
    done = engine.run()
    return [done[i].tokens for i in ids]


def runner_of(engine: Any) -> Any:
    """What computes its batches."""
    return engine.core._runner
