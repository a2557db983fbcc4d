"""List of screens, in the order of their keys."""

from __future__ import annotations

from gatewayd_tui.screens.base import ConsoleScreen
from gatewayd_tui.screens.explain import ExplainScreen
from gatewayd_tui.screens.kv import KvScreen
from gatewayd_tui.screens.logs import LogsScreen
from gatewayd_tui.screens.models import ModelsScreen
from gatewayd_tui.screens.overview import OverviewScreen
from gatewayd_tui.screens.plugins import PluginsScreen
from gatewayd_tui.screens.prefixes import PrefixesScreen
from gatewayd_tui.screens.queue import QueueScreen
from gatewayd_tui.screens.running import RunningScreen
from gatewayd_tui.screens.slo import SloScreen
from gatewayd_tui.screens.tenants import TenantsScreen

SCREENS: tuple[type[ConsoleScreen], ...] = (
    OverviewScreen,
    QueueScreen,
    RunningScreen,
    KvScreen,
    PrefixesScreen,
    SloScreen,
    TenantsScreen,
    ModelsScreen,
    PluginsScreen,
    LogsScreen,
    ExplainScreen,
)
