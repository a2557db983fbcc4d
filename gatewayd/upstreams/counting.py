"""Token counts of choices: estimates while an answer arrives, then what the upstream reports."""

from __future__ import annotations

from collections.abc import Sequence

from gatewayd_hooks.upstreams import Delta

BYTES_PER_TOKEN = 4
"""Of usual text, for estimates."""


def tokens_in(delta: Delta) -> int:
    """Estimate the tokens of a delta: those with log-probabilities, else one."""
    return len(delta.logprobs) or (1 if delta.parts else 0)


def shared(total: int, estimates: Sequence[int]) -> list[int]:
    """Divide a total among choices in proportion to their estimates, exactly.

    Args:
        total: of all choices.
        estimates: of each; not empty.
    """
    whole = sum(estimates)
    weights = list(estimates) if whole else [1] * len(estimates)
    whole = whole or len(weights)
    parts = [total * weight // whole for weight in weights]
    # The largest remainders get what rounding has left.
    order = sorted(range(len(parts)), key=lambda at: -(total * weights[at] % whole))
    for at in order[: total - sum(parts)]:
        parts[at] += 1
    return parts
