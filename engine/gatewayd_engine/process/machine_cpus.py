"""CPUs that this process may use: affinity, quota of its cgroup, cores and NUMA nodes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

_MOST_CPU = 1 << 16


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """Parse a list of CPUs as Linux writes it, such as ``0-15,32-47``.

    Returns:
        Their numbers, ascending.

    Raises:
        ValueError: it is no such list; the message names the part.
    """
    found: set[int] = set()
    for part in text.strip().split(","):
        first, dash, last = part.strip().partition("-")
        is_number = first.isdecimal() and (last.isdecimal() or not dash)
        if not is_number or max(int(first), int(last or first)) >= _MOST_CPU:
            raise ValueError(f"{part.strip()!r} is neither a CPU nor a range of CPUs")
        if dash and int(last) < int(first):
            raise ValueError(f"the range {part.strip()} is empty: write {last}-{first}")
        found.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(found))


def cpu_list(cpus: Iterable[int]) -> str:
    """Write CPUs as Linux does, such as ``0-15,32-47``."""
    numbers = sorted(cpus)
    starts = [i for i in range(len(numbers)) if i == 0 or numbers[i] > numbers[i - 1] + 1]
    ranges = [(numbers[a], numbers[b - 1]) for a, b in pairwise([*starts, len(numbers)])]
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)


@dataclass(frozen=True, slots=True)
class MachineCpus:
    """CPUs of a machine, as one process sees them.

    Attributes:
        allowed: CPUs that the process may run on, ascending.
        core_of: the first CPU of each CPU's core; SMT siblings share one.
        nodes: the allowed CPUs of each NUMA node that has any, by its number.
        quota: processor time of the cgroup, in CPUs; None without a limit.
    """

    allowed: tuple[int, ...]
    core_of: dict[int, int]
    nodes: dict[int, tuple[int, ...]]
    quota: float | None = None

    @classmethod
    def read(cls, root: Path = Path("/"), allowed: Iterable[int] | None = None) -> MachineCpus:
        """Read them from the system; where it does not tell, each CPU is a core of one node.

        Args:
            root: folder that has ``sys`` and ``proc``.
            allowed: CPUs of the process; None for those of this one.
        """
        cpus = tuple(sorted(_own_cpus() if allowed is None else allowed))
        devices = root / "sys/devices/system"
        core_of = {}
        for cpu in cpus:
            text = _text(devices / f"cpu/cpu{cpu}/topology/thread_siblings_list")
            core_of[cpu] = min(_parsed(text) or (cpu,))
        nodes = {}
        for folder in (devices / "node").glob("node[0-9]*"):
            inside = set(_parsed(_text(folder / "cpulist"))) & set(cpus)
            if inside:
                nodes[int(folder.name.removeprefix("node"))] = tuple(sorted(inside))
        if set().union(*nodes.values()) != set(cpus):
            nodes = {0: cpus}
        return cls(cpus, core_of, dict(sorted(nodes.items())), _quota(root))

    def cores(self, cpus: Sequence[int]) -> tuple[int, ...]:
        """Return one CPU for each core among some CPUs, node by node."""
        first: dict[int, int] = {}
        for inside in self.nodes.values():
            for cpu in inside:
                if cpu in cpus:
                    first.setdefault(self.core_of[cpu], cpu)
        return tuple(first.values())

    def nodes_of(self, cpus: Iterable[int]) -> tuple[int, ...]:
        """Return the numbers of the nodes that have any of these CPUs."""
        wanted = set(cpus)
        return tuple(node for node, inside in self.nodes.items() if wanted & set(inside))


def _own_cpus() -> Iterable[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return range(os.cpu_count() or 1)


def _quota(root: Path) -> float | None:
    """Return the lowest ``cpu.max`` of the process's cgroup (version 2) and those above it."""
    top = root / "sys/fs/cgroup"
    lines = _text(root / "proc/self/cgroup").splitlines()
    path = next((line[3:] for line in lines if line.startswith("0::")), "/")
    parts = [part for part in path.split("/") if part not in ("", "..")]
    quotas = []
    # A container sees its own group as the top, whatever path its processes have.
    for depth in range(len(parts) + 1):
        limit, _, period = _text(top.joinpath(*parts[:depth], "cpu.max")).partition(" ")
        if limit.strip().isdecimal() and period.strip().isdecimal() and int(period):
            quotas.append(int(limit) / int(period))
    return min(quotas, default=None)


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _parsed(text: str) -> tuple[int, ...]:
    try:
        return parse_cpu_list(text)
    except ValueError:
        return ()
