"""Settings of ``[scheduler.fair]``."""

from gatewayd_hooks.strategy import StrategyConfig, setting


class FairConfig(StrategyConfig):
    """What a tenant is charged, and how far one may be ahead of another."""

    prompt_cost: float = setting(
        1.0, reload="hot", gt=0, le=1e3, doc="What a computed prompt token costs its tenant."
    )
    answer_cost: float = setting(
        2.0, reload="hot", gt=0, le=1e3, doc="What a generated token costs its tenant."
    )
    lead: float = setting(
        0.0,
        reload="hot",
        ge=0,
        le=1e12,
        doc="Cost by which a tenant may be ahead of one that waits, before its newest sequence "
        "gives way. 0 is a sixteenth of what the longest answer costs.",
    )
    credit: float = setting(
        0.0,
        reload="hot",
        ge=0,
        le=1e12,
        doc="Cost by which a tenant that got all it wanted may stay behind the others: so much of "
        "its next requests goes first. 0 is a quarter of what the longest answer costs.",
    )
    crowd_share: float = setting(
        0.2,
        reload="hot",
        gt=0,
        le=1,
        doc="Most of a step for prompts of tenants without credit, while others were there in the "
        "last minute: who comes waits for the step that is under way.",
    )
    crowd_pause: int = setting(
        2,
        reload="hot",
        ge=0,
        le=1000,
        doc="Steps in a row in which answers of tenants without credit wait while a prompt of one "
        "that has is computed.",
    )
    class_delay: float = setting(
        10.0,
        reload="hot",
        ge=0,
        le=86_400,
        doc="Seconds that each class of a tenant's requests waits behind the one above it.",
    )
