"""Settings of ``[kv_compression.matching]``."""

from typing import Literal

from gatewayd_hooks.strategy import StrategyConfig, setting


class MatchingConfig(StrategyConfig):
    """Which prompts are compacted, by how much, and how they are fitted."""

    ratio: float = setting(
        4.0,
        reload="hot",
        ge=1.1,
        le=64.0,
        doc="Compaction ratio, from 1.1 to 64, of the compacted part of a prompt.",
    )
    at_least: int = setting(
        1024,
        reload="hot",
        ge=64,
        doc="Minimum length in tokens, at least 64, of prompts that are compacted.",
    )
    recent: int = setting(
        64,
        reload="hot",
        ge=1,
        doc=(
            "Number of latest prompt tokens, at least 1, whose keys and values are not compacted."
        ),
    )
    queries: int = setting(
        256,
        reload="hot",
        ge=16,
        le=4096,
        doc=(
            "Number of latest prompt tokens, from 16 to 4096, whose queries stand in for future "
            "ones; they are computed again."
        ),
    )
    choose: Literal["share", "greedy"] = setting(
        "share",
        reload="hot",
        doc=(
            "Which keys remain: those with the largest share of attention (`share`), or those "
            "that add most of the missing mass (`greedy`)."
        ),
    )
    ridge: float = setting(
        1e-2,
        reload="hot",
        gt=0.0,
        le=1.0,
        doc=(
            "Regularization of biases and values towards the original ones, above 0 and up to 1: "
            "less fits the sampled queries better, and others worse."
        ),
    )
