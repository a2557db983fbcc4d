"""It keeps the contract of the console; what is particular to it is in ``test_crowd``."""

from types import ModuleType

from gatewayd_hooks.testing.console import ConsoleConformance

import gatewayd_console_crowd


class TestCrowd(ConsoleConformance):
    """What every part of the console must do."""

    def make(self) -> ModuleType:
        """Return what the entry point names."""
        return gatewayd_console_crowd
