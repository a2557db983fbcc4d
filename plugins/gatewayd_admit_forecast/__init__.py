"""Admission by deadline: accepts requests whose first token is forecast to be in time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_admit_forecast.config import ForecastConfig
from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo

if TYPE_CHECKING:
    from gatewayd_hooks.admission import AdmissionStrategy


def _build(config: ForecastConfig) -> AdmissionStrategy:
    from gatewayd_admit_forecast.strategy import Forecast

    return Forecast(config)


@hookimpl
def gatewayd_admissions() -> Sequence[StrategyInfo[AdmissionStrategy]]:
    """Provide ``forecast``."""
    return [
        StrategyInfo(
            name="forecast",
            config_type=ForecastConfig,
            build=_build,
            summary="Accepts requests forecast to meet their deadline; rejects others at once.",
            requires_spec=">=1.7,<2",
        )
    ]
