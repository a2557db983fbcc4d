"""The screens, in the order of their keys: a line each."""

from __future__ import annotations

from gatewayd_tui.screens.base import ConsoleScreen
from gatewayd_tui.screens.explain import ExplainScreen
from gatewayd_tui.screens.logs import LogsScreen
from gatewayd_tui.screens.overview import OverviewScreen
from gatewayd_tui.screens.queue import QueueScreen
from gatewayd_tui.screens.running import RunningScreen

SCREENS: tuple[type[ConsoleScreen], ...] = (
    OverviewScreen,
    QueueScreen,
    RunningScreen,
    LogsScreen,
    ExplainScreen,
)
