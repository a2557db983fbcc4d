"""Settings of ``[residency.schedule]``."""

from __future__ import annotations

from pydantic import field_validator

from gatewayd_hooks.strategy import StrategyConfig, setting
from gatewayd_residency_schedule.windows import parse_window


class ScheduleResidencyConfig(StrategyConfig):
    """Times of day at which models are loaded."""

    windows: list[str] = setting(
        [],
        reload="hot",
        max_length=256,
        doc='Times at which a model is loaded and protected, in local time, such as "large'
        ' 08:00-18:00 mon-fri"; without days on each day. A window may pass midnight.',
    )

    @field_validator("windows")
    @classmethod
    def _are_windows(cls, windows: list[str]) -> list[str]:
        for window in windows:
            parse_window(window)
        return windows
