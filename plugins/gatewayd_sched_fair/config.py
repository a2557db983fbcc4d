"""Settings of ``[scheduler.fair]``."""

from gatewayd_hooks.strategy import StrategyConfig, setting


class FairConfig(StrategyConfig):
    """Costs of tokens, and how far tenants may be apart."""

    prompt_cost: float = setting(
        1.0,
        reload="hot",
        gt=0,
        le=1e3,
        doc="Cost of a computed prompt token, above 0 and up to 1000.",
    )
    answer_cost: float = setting(
        2.0, reload="hot", gt=0, le=1e3, doc="Cost of a generated token, above 0 and up to 1000."
    )
    lead: float = setting(
        0.0,
        reload="hot",
        ge=0,
        le=1e12,
        doc=(
            "Cost, up to 1e12, by which a tenant may be ahead of one that waits before its newest "
            "sequence is preempted; 0 is a sixteenth of the cost of the longest answer."
        ),
    )
    credit: float = setting(
        0.0,
        reload="hot",
        ge=0,
        le=1e12,
        doc=(
            "Cost, up to 1e12, by which a tenant that got all it wanted may stay behind the "
            "others, so that its next requests go first; 0 is a quarter of the cost of the "
            "longest answer."
        ),
    )
    crowd_share: float = setting(
        0.2,
        reload="hot",
        gt=0,
        le=1,
        doc=(
            "Maximum fraction of a step's tokens, above 0 and up to 1, for prompts of tenants "
            "without credit, if other tenants were active in the last minute; smaller steps let "
            "new requests start sooner."
        ),
    )
    crowd_pause: int = setting(
        2,
        reload="hot",
        ge=0,
        le=1000,
        doc=(
            "Maximum number of consecutive steps, from 0 (none) to 1000, in which decodes of "
            "tenants without credit pause while a prompt of a tenant with credit is computed."
        ),
    )
    class_delay: float = setting(
        10.0,
        reload="hot",
        ge=0,
        le=86_400,
        doc=(
            "Seconds, from 0 to 86400, by which each priority class of a tenant's requests is "
            "delayed after the class above it."
        ),
    )
