"""The generate API of text-generation-inference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo

from gatewayd_proto_tgi.config import TgiSettings

if TYPE_CHECKING:
    from gatewayd_hooks.protocols import ProtocolStrategy


def _build(config: TgiSettings) -> ProtocolStrategy:
    from gatewayd_proto_tgi.strategy import TgiProtocol

    return TgiProtocol(config)


@hookimpl
def gatewayd_protocols() -> Sequence[StrategyInfo[ProtocolStrategy]]:
    """Offer ``tgi``."""
    return [
        StrategyInfo(
            name="tgi",
            config_type=TgiSettings,
            build=_build,
            summary="The generate API of text-generation-inference.",
            requires_spec=">=1.6,<2",
        )
    ]
