"""Settings of ``[drafter.medusa]``."""

from __future__ import annotations

from gatewayd_hooks.strategy import StrategyConfig, setting


class MedusaConfig(StrategyConfig):
    """Trained heads, and the size of the draft tree."""

    heads: str = setting(
        "",
        reload="restart",
        is_path=True,
        doc=(
            "Folder of heads trained for the model; empty for the model's folder with the suffix "
            "`-medusa`."
        ),
    )
    tree_size: int = setting(
        32,
        reload="restart",
        ge=1,
        le=256,
        doc="Maximum of draft tokens of a sequence in a step, from 1 to 256.",
    )
