"""Admission by queue space, part of which is reserved for other tenants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_admit_room.config import RoomConfig
from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo

if TYPE_CHECKING:
    from gatewayd_hooks.admission import AdmissionStrategy


def _build(config: RoomConfig) -> AdmissionStrategy:
    from gatewayd_admit_room.strategy import Room

    return Room(config)


@hookimpl
def gatewayd_admissions() -> Sequence[StrategyInfo[AdmissionStrategy]]:
    """Provide ``room``."""
    return [
        StrategyInfo(
            name="room",
            config_type=RoomConfig,
            build=_build,
            summary="Accepts requests while the queue has room; limits each tenant's part of it.",
            requires_spec=">=1.7,<2",
        )
    ]
