"""Settings of ``[routes.NAME.split]``."""

from typing import Annotated, Literal

from pydantic import Field

from gatewayd_hooks.strategy import StrategyConfig, setting

Weight = Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)]


class SplitConfig(StrategyConfig):
    """Weights, and what requests have in common that reach the same target."""

    weights: dict[str, Weight] = setting(
        {},
        reload="restart",
        doc="Weight of each target by name; 1 for one that is not named, 0 for no request.",
    )
    by: Literal["key", "tenant", "conversation"] = setting(
        "key",
        reload="restart",
        doc="What decides the target: the API key, the tenant, or `prompt_cache_key` of the "
        "request. Requests without it are split one by one.",
    )
