"""Memory that the models of a catalogue may take together."""

from __future__ import annotations

from dataclasses import dataclass

_GIB = 1 << 30

UNKNOWN = 1 << 62
"""Bytes of a model whose memory cannot be estimated, which fits into no budget."""


class BudgetExceeded(Exception):
    """A model can never be loaded within the budget; the message says why, and what to change."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """Memory of one model while it is loaded.

    Attributes:
        host: bytes of host memory.
        device: bytes of device memory; 0 on a CPU.
    """

    host: int
    device: int = 0

    def __add__(self, other: Footprint) -> Footprint:
        return Footprint(self.host + other.host, self.device + other.device)

    @property
    def main(self) -> int:
        """Bytes where the weights are."""
        return self.device or self.host


NOTHING = Footprint(0)


@dataclass(frozen=True, slots=True)
class CatalogueBudget:
    """Limits on the footprints of all loaded models together.

    Attributes:
        host: bytes of host memory; None for no limit.
        device: bytes of device memory; None for no limit.
    """

    host: int | None = None
    device: int | None = None

    def holds(self, footprint: Footprint) -> bool:
        """Whether a footprint is within the limits."""
        return (self.host is None or footprint.host <= self.host) and (
            self.device is None or footprint.device <= self.device
        )

    def check(self, name: str, own: Footprint, pinned: Footprint) -> None:
        """Check that a model fits beside the pinned ones.

        Args:
            name: of the model.
            own: its footprint.
            pinned: footprint of all pinned models but this one.

        Raises:
            BudgetExceeded: it does not.
        """
        for key, limit, needed, held in (
            ("memory", self.host, own.host, pinned.host),
            ("device_memory", self.device, own.device, pinned.device),
        ):
            if limit is not None and needed >= UNKNOWN:
                raise BudgetExceeded(
                    f"the memory of the model {name} cannot be estimated: set its [engine]"
                    f" kv_memory instead of kv_pages or gpu_memory_utilization, or its memory,"
                    f" because [catalogue] {key} is set"
                )
            if limit is not None and needed + held > limit:
                beside = f" beside {held / _GIB:.2f} GiB of pinned models" if held else ""
                raise BudgetExceeded(
                    f"the model {name} needs {needed / _GIB:.2f} GiB{beside}, and [catalogue]"
                    f" {key} is {limit / _GIB:.2f} GiB: raise it, lower the model's [engine]"
                    " kv_memory, or set its memory if the estimate is too high"
                )
