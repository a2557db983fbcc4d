"""Source text of test plugins."""

from __future__ import annotations

from gatewayd_hooks.host.catalog import Catalog
from gatewayd_hooks.host.loading import PluginHost, PluginRow

SCHEDULER = """
from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyConfig, StrategyInfo, setting

class Config(StrategyConfig):
    depth: int = setting(1, reload="hot", ge=1, le=8, doc="How deep.")
    password: str = setting("", reload="secret", max_length=4, doc="What opens.")

class Scheduler:
    def __init__(self, config): self.config = config
    def open(self, resources): raise AssertionError("nobody asked to open it")
    def close(self): ...
    def enqueue(self, slot, view, *, front): ...
    def dequeue(self, slot): ...
    def plan(self, view): ...

def offer(name="mine", build=Scheduler, config_type=Config, **more):
    return StrategyInfo(
        name=name, config_type=config_type, build=build, summary="A scheduler.", **more
    )

"""


OFFER = """
@hookimpl
def gatewayd_schedulers():
    return [{}]
"""


SOUND = SCHEDULER + OFFER.format("offer()")


def host() -> PluginHost:
    return PluginHost(Catalog.installed())


def row_of(plugins: PluginHost, name: str) -> PluginRow:
    (row,) = [row for row in plugins.report() if row.name == name]
    return row
