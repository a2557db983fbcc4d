"""The same number of drafts for every sequence, for measuring drafters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gatewayd_hooks.resources import EngineResources
    from gatewayd_hooks.speculation import SpecReport, SpecView
    from gatewayd_spec_fixed.config import FixedConfig


class Fixed:
    """Gives each row its drafts while the budget lasts, the first rows first."""

    def __init__(self, config: FixedConfig) -> None:
        self._drafts = config.drafts

    def open(self, resources: EngineResources) -> None:
        """Do nothing: the engine's sizes do not matter."""

    def close(self) -> None:
        """Do nothing: there are no resources to release."""

    def admit(self, row: int) -> None:
        """Do nothing: there is no state per row."""

    def decide(self, view: SpecView) -> NDArray[np.int64]:
        """Return the configured number, as far as limits and budget allow."""
        wanted = np.minimum(view.limits, self._drafts)
        before = np.cumsum(wanted) - wanted
        drafts: NDArray[np.int64] = np.minimum(wanted, np.maximum(view.budget - before, 0))
        return drafts

    def report(self, report: SpecReport) -> None:
        """Do nothing: there is nothing to learn."""
