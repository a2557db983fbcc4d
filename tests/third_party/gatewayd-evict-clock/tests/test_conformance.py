"""It keeps the contract of its kind; what is particular to it is yours to add."""

from gatewayd_hooks.caching import EvictionStrategy
from gatewayd_hooks.testing.eviction import EvictionConformance

from gatewayd_evict_clock.config import ClockSettings
from gatewayd_evict_clock.strategy import ClockEviction


class TestClockEviction(EvictionConformance):
    """What every plugin of its kind must do."""

    def make(self) -> EvictionStrategy:
        """Build one with its default settings."""
        return ClockEviction(ClockSettings())
