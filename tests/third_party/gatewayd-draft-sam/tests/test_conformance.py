"""It keeps the contract of its kind; what is particular to it is yours to add."""

from gatewayd_hooks.speculation import DrafterStrategy
from gatewayd_hooks.testing.speculation import DrafterConformance

from gatewayd_draft_sam.config import SamSettings
from gatewayd_draft_sam.strategy import SamDrafter


class TestSamDrafter(DrafterConformance):
    """What every plugin of its kind must do."""

    def make(self) -> DrafterStrategy:
        """Build one with its default settings."""
        return SamDrafter(SamSettings())
