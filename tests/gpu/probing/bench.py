"""Compares, times and notes one row after another, whatever becomes of a single one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch

from gatewayd_engine.kernels.base import Kernels
from gatewayd_engine.kernels.torch_kernels import TorchKernels
from gatewayd_engine.tuning.clock import device_errors
from gatewayd_engine.tuning.table import DeviceLost
from tests.gpu.probing.compiling import Ahead
from tests.gpu.probing.device import clock_of, kernels_of, machine_of, speed_of
from tests.gpu.probing.document import Document, Row
from tests.gpu.probing.libraries import Absent
from tests.gpu.probing.shapes import LLAMA, TINY, Sizes
from tests.gpu.probing.trial import MOST_ERROR, NoTime, Tensors, Trial, apart

TWIN = TorchKernels()
_UNCACHED = 512 << 20
"""Bytes of copies of a matrix that are read one after the other: more than a cache holds."""
_LAUNCHES = 24
_COMPILED = 0.5
"""Of a part's time, when it no longer waits for what is compiled ahead."""


class Bench:
    """Measures rows.

    Args:
        device: ``cuda``, or ``cpu`` for the rehearsal.
        out: folder of ``probe.json``; None for no file.
        batches: in the place of the sizes' own; empty for those.
        compilers: threads that compile a part's kernels side by side before they are timed; 0
            compiles each when its row comes.
        goes_on: whether ``probe.json`` has what an earlier process measured.

    Attributes:
        kernels: the engine's, launched in turn and, where the device can, early.
        is_compiling: kernels of rows are only compiled: contexts are short, and matrices have no
            copies.
        failed: rows that raised, or whose answer differs.
    """

    def __init__(
        self,
        device: str,
        out: Path | None,
        batches: tuple[int, ...],
        compilers: int,
        *,
        goes_on: bool = False,
    ) -> None:
        self.device = torch.device(device)
        self.sizes: Sizes = TINY if device == "cpu" else LLAMA
        self.batches = batches or self.sizes.batches
        self.is_compiling = False
        self._compilers = compilers
        self._ahead: Ahead | None = None
        self.kernels: dict[str, Kernels] = {"": kernels_of(self.device)}
        if self.kernels[""].can_launch_early:
            self.kernels[" early"] = kernels_of(self.device)
            self.kernels[" early"].launches_early = True
        self.clock = clock_of(self.device)
        self._speed = speed_of(self.device)
        self._until = 0.0
        self._place = ""
        self._where: dict[str, Any] = {}
        self._document = Document(out, machine_of(self.device), goes_on=goes_on)
        self.failed: list[str] = self._document.made["failed"]

    @property
    def machine(self) -> str:
        """The chip, and the versions of what computes on it."""
        made = self._document.made
        return ", ".join([made["chip"], *(f"{name} {of}" for name, of in made["versions"].items())])

    @property
    def is_small(self) -> bool:
        """Whether one copy of a weight will do: nothing that is timed tells of the memory."""
        return self.is_compiling or self.device.type == "cpu"

    @property
    def contexts(self) -> tuple[int, ...]:
        """Tokens of each line; kernels are compiled for any number of them."""
        return (self.sizes.page,) if self.is_compiling else self.sizes.contexts

    def randn(self, *shape: int, scale: float = 1.0) -> torch.Tensor:
        """Activations or weights."""
        return torch.randn(shape, dtype=self.sizes.dtype, device=self.device) * scale

    def ints(self, *shape: int, high: int, low: int = 0) -> torch.Tensor:
        """Integers of 32 bits."""
        return torch.randint(low, high, shape, dtype=torch.int32, device=self.device)

    def copies(self, rows: int, columns: int) -> tuple[list[torch.Tensor], int]:
        """Copies of a matrix that do not fit the cache, and how often to go through them."""
        number = max(1, min(8, _UNCACHED // (2 * rows * columns)))
        if self.is_small:
            number = 1
        made = [self.randn(rows, columns, scale=columns**-0.5) for _ in range(number)]
        return made, max(1, _LAUNCHES // number) if rows * columns < _UNCACHED // 2 else 4

    def part(
        self, name: str, rows: Callable[[Bench], None], seconds: float, *, singly: bool = False
    ) -> None:
        """Measure a part: compile its kernels side by side, then row by row.

        Args:
            name: of the part.
            rows: measures its rows.
            seconds: for all of it.
            singly: compile no row's kernel before it comes.

        Raises:
            Lost: the device computes nothing any more; what was measured is written.
        """
        began = time.monotonic()
        self._place, self._where, self._ahead = name, {"place": name}, None
        self._document.begin(name)
        try:
            if self._compilers and not singly and seconds > 0:
                self._until = began + seconds * _COMPILED
                self._compile(name, rows)
            self._until = began + seconds
            self._measured(name, rows)
        except NoTime as at:
            print(f"{name}: no time from {at} on", flush=True)
            self._document.made["left_out"].append(f"{name}: from {at} on")
        except DeviceLost as error:
            self._document.made["lost"].append(str(error))
            self._document.write()
            raise
        except Exception as error:  # noqa: BLE001 - the other parts are still of use
            self._fail(name, f"{type(error).__name__}: {str(error)[:300]}")
        self._document.end(name)
        self._document.write()

    def _compile(self, name: str, rows: Callable[[Bench], None]) -> None:
        try:
            self._ahead, self.is_compiling = Ahead(self._compilers), True
            with device_errors(self.device, f"{name}, before its rows"):
                with suppress(NoTime):
                    rows(self)
                self._ahead.finish(self._until)
                self._ahead.close()
                self._release()
        except DeviceLost:
            raise
        except Exception as error:  # noqa: BLE001 - each is compiled when its row comes
            print(f"not compiled ahead: {type(error).__name__}: {str(error)[:150]}", flush=True)
        finally:
            self.is_compiling = False
            if self._ahead is not None:
                self._ahead.close()

    def _measured(self, name: str, rows: Callable[[Bench], None]) -> None:
        try:
            rows(self)
        except (NoTime, DeviceLost):
            raise
        except Exception:
            with device_errors(self.device, f"{name}, between its rows"):
                raise

    @contextmanager
    def at(self, name: str, **where: int) -> Iterator[None]:
        """Rows of one place.

        Raises:
            NoTime: none of them can be measured any more.
        """
        said = " ".join([name, *(f"{key} {value}" for key, value in where.items())])
        if time.monotonic() > self._until:
            raise NoTime(said)
        if not self.is_compiling:
            print(said, flush=True)
        self._place, self._where = said, {"place": name, **where}
        yield
        if not self.is_compiling:
            self._release()

    def _release(self) -> None:
        """Give memory back that no row needs any more."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
            torch.cuda.empty_cache()

    def both(self, name: str, make: Callable[[Kernels], Trial]) -> None:
        """Rows of one kernel of ours: launched in turn, and early."""
        for how, kernels in self.kernels.items():
            self.row(f"{name}{how}", partial(make, kernels), is_ours=True)

    def kernel(
        self,
        name: str,
        compute: Callable[[Kernels], Tensors],
        launch: Callable[[Kernels], object],
        read: int = 0,
        *,
        ways: Sequence[str] | None = None,
    ) -> None:
        """Rows of a kernel whose twin takes the same arguments.

        Args:
            name: of the kernel.
            compute: its answer, the same each time.
            launch: what is timed.
            read: see ``Trial``.
            ways: see ``kernels``; None for all.
        """
        for how in self.kernels if ways is None else ways:
            if (mine := self.kernels.get(how)) is not None:
                calls = [partial(launch, mine)] * self.sizes.layers
                trial = Trial(calls, partial(compute, mine), partial(compute, TWIN), read)
                self.row(f"{name}{how}", partial(Trial, *trial), is_ours=True)

    def row(self, name: str, make: Callable[[], Trial], *, is_ours: bool = False) -> float | None:
        """Compare and time one row; say what came of it.

        Returns:
            Microseconds; None where there are none.

        Raises:
            Lost: the device computes nothing any more.
        """
        if self.is_compiling:
            if is_ours and self._ahead is not None:
                self._ahead.submit(self._where, name, lambda: make().answer())
            return None
        if (noted := self._document.known(self._where, name)) is not None:
            return noted.get("microseconds")
        noted = self._document.row(self._where, name)
        try:
            self._refuse(name)
            with device_errors(self.device, name):
                self._measure(name, make(), noted)
        except Absent as error:
            noted["absent"] = str(error)
            print(f"  {name:26} absent: {error}", flush=True)
        except NoTime as why:
            noted["left_out"] = str(why)
            self._document.made["left_out"].append(f"{self._place}, {name}: {why}")
            print(f"  {name:26} left out: {why}", flush=True)
        except Exception as error:
            self._failed(name, error, noted)
            if isinstance(error, DeviceLost):
                noted["lost"] = True
                raise
        return noted.get("microseconds")

    def _refuse(self, name: str) -> None:
        if self._document.is_fatal(self._where, name):
            raise NoTime("the device was lost to it")
        if self._ahead is not None and self._ahead.is_busy(self._where, name):
            raise NoTime("it is still being compiled")

    def library(self, name: str, load: Callable[[], Any]) -> Any | None:
        """What a row compares with, before there is a row; None if there is none."""
        try:
            return load()
        except Absent as error:
            print(f"{name} is absent: {error}", flush=True)
        except Exception as error:  # noqa: BLE001 - the others are measured without it
            self._failed(name, error, self._document.row(self._where, name))
        return None

    def _failed(self, name: str, error: Exception, noted: Row) -> None:
        noted["error"] = f"{type(error).__name__}: {str(error)[:300]}"
        self._fail(name, noted["error"])

    def _fail(self, name: str, why: str) -> None:
        self.failed.append(f"{self._place}, {name}: {why}")
        print(f"  {name:26} FAILED: {why}", flush=True)

    def _measure(self, name: str, trial: Trial, noted: Row) -> None:
        pairs = zip(trial.answer(), trial.wanted(), strict=True)
        most = max(apart(mine, wanted) for mine, wanted in pairs)
        us = self.clock(trial.calls)
        noted |= {"microseconds": us, "differs_by": most}
        said = [f"{us:9.1f} us"]
        if trial.read:
            speed = trial.read / us * 1e6
            noted |= {"terabytes_per_second": speed / 1e12, "share": speed / self._speed}
            said.append(f"{speed / 1e12:6.2f} TB/s {speed / self._speed:5.0%}")
        said += [trial.note] if trial.note else []
        if not most <= MOST_ERROR:  # so that no number is not enough either
            noted["differs"] = True
            self.failed.append(f"{self._place}, {name}: differs by {most:.1e}")
            said.append(f"DIFFERS by {most:.1e}")
        print(f"  {name:26}{'  '.join(said)}", flush=True)
