"""What speculation can gain: the formula of Leviathan et al. (2023, arXiv 2211.17192, section 3).

Drafts are taken to be kept independently of one another with one probability. They are not, quite;
the formula is still within some percent of what is measured (docs/benchmarks.md).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a number of drafts gains.

    Attributes:
        drafts: tokens guessed in a step.
        tokens_per_step: that come of one, the model's own token included.
        speed_up: tokens per second against none guessed.
    """

    drafts: int
    tokens_per_step: float
    speed_up: float


def estimate(
    acceptance: float, drafts: int, draft_cost: float, token_cost: float = 0.0
) -> Estimate:
    """Expected tokens of a step, and how much faster that is.

    Args:
        acceptance: probability that a draft is kept if all before it are, 0 to 1.
        drafts: tokens guessed in a step, at least 0.
        draft_cost: time of guessing one token, in steps of the model without drafts.
        token_cost: time that each draft adds to the step that checks it, in such steps; 0 where
            reading the weights takes all the time.
    """
    if acceptance < 1.0:
        tokens = (1.0 - acceptance ** (drafts + 1)) / (1.0 - acceptance)
    else:
        tokens = drafts + 1.0
    return Estimate(drafts, tokens, tokens / (1.0 + drafts * (draft_cost + token_cost)))


def best(acceptance: float, most: int, draft_cost: float, token_cost: float = 0.0) -> Estimate:
    """The number of drafts that gains most, from none to ``most``."""
    return max(
        (estimate(acceptance, drafts, draft_cost, token_cost) for drafts in range(most + 1)),
        key=lambda each: each.speed_up,
    )
