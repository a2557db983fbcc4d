"""Settings of ``[routes.NAME.cascade]``."""

from typing import Annotated

from pydantic import Field

from gatewayd_hooks.strategy import StrategyConfig, setting

Phrase = Annotated[str, Field(min_length=1, max_length=256)]


class CascadeConfig(StrategyConfig):
    """What an answer must have to be sent."""

    min_logprob: float = setting(
        -0.5,
        reload="restart",
        le=0,
        doc="Minimum mean log-probability of an answer's tokens; -0.5 is a geometric mean of the "
        "probabilities of 0.61.",
    )
    samples: int = setting(
        0,
        reload="restart",
        ge=0,
        le=15,
        doc="Number of further answers that are sampled to check whether the first is consistent "
        "with them; each costs as much as an answer.",
    )
    min_agreement: float = setting(
        0.5,
        reload="restart",
        ge=0,
        le=1,
        doc="Minimum share of the further answers that equal the first, without case, punctuation "
        "and white space.",
    )
    accepts_cut: bool = setting(
        True,
        reload="restart",
        doc="Whether an answer that ended at its maximum length may be sent.",
    )
    rejected_phrases: list[Phrase] = setting(
        [],
        reload="restart",
        max_length=64,
        doc="Phrases of answers that are not sent, in any case, such as `I don't know`.",
    )
