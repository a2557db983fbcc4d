"""Speedup of speculative decoding, after Leviathan et al. (2023, arXiv 2211.17192, section 3).

Draft tokens are assumed to be accepted independently with one probability. That is not quite so,
but the formula is within a few percent of measurements (docs/benchmarks.md).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Estimate:
    """Expected speedup for a draft length.

    Attributes:
        drafts: draft tokens per step.
        tokens_per_step: expected tokens per step, including the target model's own token.
        speed_up: tokens per second relative to decoding without drafts.
    """

    drafts: int
    tokens_per_step: float
    speed_up: float


def estimate(
    acceptance: float, drafts: int, draft_cost: float, token_cost: float = 0.0
) -> Estimate:
    """Estimate the tokens per step and the speedup.

    Args:
        acceptance: probability that a draft token is accepted if all before it are, 0 to 1.
        drafts: draft tokens per step, at least 0.
        draft_cost: time to draft one token, in steps of the target model without drafts.
        token_cost: time that each draft token adds to the verification step, in such steps; 0 where
            steps are bound by reading the weights.
    """
    if acceptance < 1.0:
        # The accepted prefix and one token of the target (equation 1): a geometric series.
        tokens = (1.0 - acceptance ** (drafts + 1)) / (1.0 - acceptance)
    else:
        tokens = drafts + 1.0
    return Estimate(drafts, tokens, tokens / (1.0 + drafts * (draft_cost + token_cost)))


def best(acceptance: float, most: int, draft_cost: float, token_cost: float = 0.0) -> Estimate:
    """Return the estimate for the best draft length from 0 to ``most``."""
    return max(
        (estimate(acceptance, drafts, draft_cost, token_cost) for drafts in range(most + 1)),
        key=lambda each: each.speed_up,
    )
