"""The generate API of text-generation-inference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo
from gatewayd_proto_tgi.config import TgiConfig

if TYPE_CHECKING:
    from gatewayd_hooks.protocols import ProtocolStrategy


def _build(config: TgiConfig) -> ProtocolStrategy:
    from gatewayd_proto_tgi.strategy import Tgi

    return Tgi(config)


@hookimpl
def gatewayd_protocols() -> Sequence[StrategyInfo[ProtocolStrategy]]:
    """Provide ``tgi``."""
    return [
        StrategyInfo(
            name="tgi",
            config_type=TgiConfig,
            build=_build,
            summary="Generate API of text-generation-inference.",
            requires_spec=">=1.29,<2",
        )
    ]
