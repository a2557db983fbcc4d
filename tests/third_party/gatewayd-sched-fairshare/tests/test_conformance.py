"""It keeps the contract of its kind; what is particular to it is yours to add."""

from gatewayd_hooks.scheduling import SchedulerStrategy
from gatewayd_hooks.testing.scheduling import SchedulerConformance

from gatewayd_sched_fairshare.config import FairshareSettings
from gatewayd_sched_fairshare.strategy import FairshareScheduler


class TestFairshareScheduler(SchedulerConformance):
    """What every plugin of its kind must do."""

    def make(self) -> SchedulerStrategy:
        """Build one with its default settings."""
        return FairshareScheduler(FairshareSettings())
