"""Rounds of the CPU comparison: contestants alternate, one server alive at a time."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from gatewayd.cli.bench.workload import RequestShape
from tests.bench.cpu import load, startup
from tests.bench.cpu.busy import LOADS, spinning
from tests.bench.cpu.contestants import Contestants, generate
from tests.bench.cpu.models import ServedFile
from tests.bench.cpu.record import GENERATE, Cell, Record
from tests.bench.cpu.workloads import Workload

_GENERATE_PROMPTS = 64


@dataclass(frozen=True, slots=True)
class Rounds:
    """What all rounds share.

    Attributes:
        record: of what has been measured.
        contestants: how servers start.
        names: who takes part.
        count: number of rounds.
        corpus: token ids that prompts are cut from.
    """

    record: Record
    contestants: Contestants
    names: Sequence[str]
    count: int
    corpus: Sequence[int]

    def compare(self, file: ServedFile, workloads: Sequence[Workload]) -> None:
        """Measure all workloads on one file."""
        warm = [workload for workload in workloads if not workload.is_cold]

        def one(name: str, turn: int) -> None:
            if name == GENERATE:
                if file.serves_embedded and any(w.kind == "decode" for w in warm):
                    self._generate(file, turn)
                return
            self._serve(name, file, warm, turn, "")
            for workload in workloads:
                if workload.is_cold:
                    self._serve(name, file, [workload], turn, "")

        self._alternate(self.names, one)

    def compare_busy(self, file: ServedFile, workloads: Sequence[Workload]) -> None:
        """Measure latencies while another process computes, and without one."""

        def one(name: str, turn: int) -> None:
            for kind in LOADS:
                self._serve(name, file, workloads, turn, kind)

        self._alternate([name for name in self.names if name != GENERATE], one)

    def compare_start(self, file: ServedFile) -> None:
        """Measure start and memory; what is compiled is kept from a first start to a second."""

        def one(name: str, turn: int) -> None:
            cold, warm = (Cell(file.model, file.scheme, f"{how} start") for how in ("cold", "warm"))
            if all(self.record.has(cell, name, turn) for cell in (cold, warm)):
                return
            kernels = Path(tempfile.mkdtemp())
            try:
                for cell in (cold, warm):
                    found = startup.figures(self.contestants, name, file, kernels)
                    self._keep(cell, name, turn, found)
            finally:
                shutil.rmtree(kernels)

        self._alternate([name for name in self.names if name != GENERATE], one)

    def _alternate(self, names: Sequence[str], one: Callable[[str, int], None]) -> None:
        for turn in range(self.count):
            first = turn % max(1, len(names))
            for name in (*names[first:], *names[:first]):
                one(name, turn)

    def _serve(
        self, name: str, file: ServedFile, workloads: Sequence[Workload], turn: int, kind: str
    ) -> None:
        """Measure on one process what has not been measured."""
        cells = {Cell(file.model, file.scheme, w.name, kind): w for w in workloads}
        left = {c: w for c, w in cells.items() if not self.record.has(c, name, turn)}
        if not left:
            return
        width = max(workload.concurrency for workload in workloads)
        with tempfile.TemporaryDirectory() as logs:
            log = Path(logs) / "server.log"
            with self.contestants.start(name, file, width, log) as server:
                for cell, workload in left.items():
                    seed = f"{turn} {file.model} {kind}"
                    with spinning(kind) if kind else nullcontext():
                        found = load.figures(server.url, workload, self.corpus, seed)
                    self._keep(cell, name, turn, found)

    def _generate(self, file: ServedFile, turn: int) -> None:
        sizes = {"batch 1": 1, "batch 32": 32}
        cells = {Cell(file.model, file.scheme, name): size for name, size in sizes.items()}
        if all(self.record.has(cell, GENERATE, turn) for cell in cells):
            return
        shape = RequestShape(prompt_tokens=64)
        sent = load.items(self.corpus, shape, f"{turn} generate", _GENERATE_PROMPTS)
        speeds = generate([item.prompt for item in sent])
        for cell, size in cells.items():
            self._keep(cell, GENERATE, turn, {"tok/s": speeds[size]})

    def _keep(self, cell: Cell, name: str, turn: int, found: dict[str, float]) -> None:
        self.record.add(cell, name, turn, found)
        shown = ", ".join(f"{key} {value:,.4g}" for key, value in found.items())
        where = f"{cell.model} {cell.scheme} {cell.workload}" + (f", {cell.load}" * bool(cell.load))
        print(f"round {turn} {name} {where}: {shown}", file=sys.stderr, flush=True)
