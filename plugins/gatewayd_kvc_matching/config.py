"""Settings of ``[kv_compression.matching]``."""

from typing import Literal

from gatewayd_hooks.strategy import StrategyConfig, setting


class MatchingConfig(StrategyConfig):
    """Which prompts become smaller, by how much, and what they are fitted to."""

    ratio: float = setting(
        4.0,
        reload="hot",
        ge=1.1,
        le=64.0,
        doc="So many keys and values become one, of the part of a prompt that is compacted.",
    )
    at_least: int = setting(
        1024, reload="hot", ge=64, doc="Tokens of the shortest prompt that is compacted."
    )
    recent: int = setting(
        64, reload="hot", ge=1, doc="The latest tokens of a prompt, whose keys and values stay."
    )
    queries: int = setting(
        256,
        reload="hot",
        ge=16,
        le=4096,
        doc="Latest tokens of a prompt whose queries stand for those to come; computed again.",
    )
    choose: Literal["share", "greedy"] = setting(
        "share",
        reload="hot",
        doc="Which keys are kept: those of the largest share, or those that add most mass.",
    )
    ridge: float = setting(
        1e-2,
        reload="hot",
        gt=0.0,
        le=1.0,
        doc="How strongly biases and values are drawn to what they were: less fits closer, and"
        " foresees other queries worse.",
    )
