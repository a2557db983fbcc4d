"""What the engine's core asks of a runner, on any device."""

from __future__ import annotations

from typing import Protocol

from gatewayd_engine.state.in_flight import Launched
from gatewayd_engine.state.step_batch import StepBatch


class StepRunner(Protocol):
    """Executes batches.

    Attributes:
        shows_hidden: whether results include hidden states, for a drafter; set before a step is
            launched. Runners that have them at no cost always include them.
    """

    shows_hidden: bool

    @property
    def overlaps(self) -> bool:
        """Whether a step may be launched before the result of the previous one is available."""

    @property
    def verifies_all(self) -> bool:
        """Whether sampled drafts, and drafts of rows with logits processors, can be verified.

        If not, drafts of rows with a grammar have to be chains.
        """

    @property
    def reads_tables(self) -> bool:
        """Whether its batches need block tables, which are large with long contexts."""

    def most_drafts(self, num_lines: int) -> int:
        """Return the most drafts of each sequence in a step of ``num_lines`` sequences."""

    def launch(self, batch: StepBatch) -> Launched:
        """Start a batch; after an exception the same batch may be launched again."""
