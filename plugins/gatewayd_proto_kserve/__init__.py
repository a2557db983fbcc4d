"""The gRPC API of KServe v2, the Open Inference Protocol, on a port of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo
from gatewayd_proto_kserve.config import KserveConfig

if TYPE_CHECKING:
    from gatewayd_hooks.protocols import ProtocolStrategy


def _build(config: KserveConfig) -> ProtocolStrategy:
    from gatewayd_proto_kserve.strategy import Kserve

    return Kserve(config)


@hookimpl
def gatewayd_protocols() -> Sequence[StrategyInfo[ProtocolStrategy]]:
    """Provide ``kserve``."""
    return [
        StrategyInfo(
            name="kserve",
            config_type=KserveConfig,
            build=_build,
            summary="gRPC API of KServe v2 (Open Inference Protocol), on a port of its own.",
            requires_spec=">=1.29,<2",
        )
    ]
