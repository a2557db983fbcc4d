"""Compares, times and notes one row after another, whatever becomes of a single one."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from gatewayd_engine.kernels.base import Kernels
from gatewayd_engine.kernels.torch_kernels import TorchKernels
from gatewayd_engine.tuning.clock import surviving
from gatewayd_engine.tuning.table import DeviceLost
from tests.gpu.probing.device import clock_of, kernels_of, machine_of, speed_of
from tests.gpu.probing.shapes import LLAMA, TINY, Sizes

TWIN = TorchKernels()
Call = Callable[[], object]
Tensors = tuple[torch.Tensor, ...]
_MOST_ERROR = 2e-2
"""Relative to the length of the answer, or the part of integers that differ."""
_UNCACHED = 512 << 20
"""Bytes of copies of a matrix that are read one after the other: more than a cache holds."""
_LAUNCHES = 24


class Absent(Exception):
    """What a row compares with is not installed, or not compiled; no failure."""


class NoTime(Exception):
    """The seconds of a part are over."""


class Trial(NamedTuple):
    """Something to measure.

    Attributes:
        calls: launched one behind another; the time of one of them counts.
        answer: what it computes.
        wanted: what it should compute.
        read: bytes of weights, or of keys and values, that a call reads; 0 where launching counts.
        note: said beside the time.
    """

    calls: Sequence[Call]
    answer: Callable[[], Tensors]
    wanted: Callable[[], Tensors]
    read: int = 0
    note: str = ""


class Bench:
    """Measures rows.

    Args:
        device: ``cuda``, or ``cpu`` for the rehearsal.
        out: folder of ``probe.json``; None for no file.
        batches: in the place of the sizes' own; empty for those.
        compilers: threads that launch a part's kernels before they are timed, so that these are
            compiled side by side; 0 compiles each when its row comes.

    Attributes:
        kernels: the engine's, launched in turn and, where the device can, early.
        is_compiling: rows are only launched, so that their kernels are compiled: contexts are
            short, and matrices have no copies.
        failed: rows that raised, or whose answer differs.
    """

    def __init__(
        self, device: str, out: Path | None, batches: tuple[int, ...], compilers: int
    ) -> None:
        self.device = torch.device(device)
        self.sizes: Sizes = TINY if device == "cpu" else LLAMA
        self.batches = batches or self.sizes.batches
        self.is_compiling = False
        self.failed: list[str] = []
        self._out = out
        self._compilers = compilers
        self._pool: ThreadPoolExecutor | None = None
        self.kernels: dict[str, Kernels] = {"": kernels_of(self.device)}
        if self.kernels[""].can_launch_early:
            self.kernels[" early"] = kernels_of(self.device)
            self.kernels[" early"].launches_early = True
        self.clock = clock_of(self.device)
        self._speed = speed_of(self.device)
        self._began = time.monotonic()
        self._until = 0.0
        self._place = ""
        self._where: dict[str, Any] = {}
        self._document = {**machine_of(self.device), "rows": [], "left_out": []}

    @property
    def machine(self) -> str:
        """The chip, and the versions of what computes on it."""
        versions = self._document["versions"].items()
        return ", ".join([self._document["chip"], *(f"{name} {of}" for name, of in versions)])

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

    def part(self, name: str, rows: Callable[[Bench], None], seconds: float) -> None:
        """Measure a part: compile its kernels side by side, then row by row.

        Raises:
            Lost: the device computes nothing any more; what was measured is written.
        """
        self._until = time.monotonic() + seconds
        try:
            if self._compilers and seconds > 0:
                self._compile(rows)
            rows(self)
        except NoTime as at:
            print(f"{name}: no time from {at} on", flush=True)
            self._document["left_out"].append(f"{name}: from {at} on")
        except DeviceLost as error:
            self._document["lost"] = str(error)
            raise
        except Exception as error:  # noqa: BLE001 - the other parts are still of use
            self._fail(name, f"{type(error).__name__}: {str(error)[:300]}")
        finally:
            self._write()

    def _compile(self, rows: Callable[[Bench], None]) -> None:
        self.is_compiling = True
        try:
            with surviving(self.device, "kernels that were launched to be compiled"):
                with ThreadPoolExecutor(self._compilers) as self._pool:
                    rows(self)
                self._release()
        except DeviceLost:
            raise
        except Exception as error:  # noqa: BLE001 - each is compiled when its row comes
            print(f"not compiled ahead: {type(error).__name__}: {str(error)[:150]}", flush=True)
        finally:
            self._pool, self.is_compiling = None, False

    @contextmanager
    def at(self, name: str, **where: int) -> Iterator[None]:
        """Rows of one place.

        Raises:
            NoTime: none of them can be measured any more.
        """
        said = " ".join([name, *(f"{key} {value}" for key, value in where.items())])
        if not self.is_compiling:
            if time.monotonic() > self._until:
                raise NoTime(said)
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
            if is_ours and self._pool is not None:
                self._pool.submit(_launched, make)
            return None
        noted: dict[str, Any] = {**self._where, "name": name}
        self._document["rows"].append(noted)
        try:
            with surviving(self.device, name):
                self._measure(name, make(), noted)
        except (Absent, ImportError) as error:
            if isinstance(error, ImportError) and "flashinfer" not in str(error):
                self._failed(name, error, noted)
                return None
            noted["absent"] = str(error)
            print(f"  {name:26} absent: {error}", flush=True)
        except Exception as error:
            self._failed(name, error, noted)
            if isinstance(error, DeviceLost):
                raise
        return noted.get("microseconds")

    def _failed(self, name: str, error: Exception, noted: dict[str, Any]) -> None:
        noted["error"] = f"{type(error).__name__}: {str(error)[:300]}"
        self._fail(name, noted["error"])

    def _fail(self, name: str, why: str) -> None:
        self.failed.append(f"{self._place}, {name}: {why}")
        print(f"  {name:26} FAILED: {why}", flush=True)

    def _measure(self, name: str, trial: Trial, noted: dict[str, Any]) -> None:
        pairs = zip(trial.answer(), trial.wanted(), strict=True)
        apart = max(_apart(mine, wanted) for mine, wanted in pairs)
        us = self.clock(trial.calls)
        noted |= {"microseconds": us, "differs_by": apart}
        said = [f"{us:9.1f} us"]
        if trial.read:
            speed = trial.read / us * 1e6
            noted |= {"terabytes_per_second": speed / 1e12, "share": speed / self._speed}
            said.append(f"{speed / 1e12:6.2f} TB/s {speed / self._speed:5.0%}")
        said += [trial.note] if trial.note else []
        if not apart <= _MOST_ERROR:  # so that no number is not enough either
            noted["differs"] = True
            self.failed.append(f"{self._place}, {name}: differs by {apart:.1e}")
            said.append(f"DIFFERS by {apart:.1e}")
        print(f"  {name:26}{'  '.join(said)}", flush=True)

    def _write(self) -> None:
        self._document["seconds"] = round(time.monotonic() - self._began, 1)
        if self._out is not None:
            self._out.mkdir(parents=True, exist_ok=True)
            text = json.dumps(self._document, indent=1) + "\n"
            (self._out / "probe.json").write_text(text, "utf-8")


@torch.inference_mode()
def _launched(make: Callable[[], Trial]) -> None:
    """Launch what computes a row's answer; its row says what is wrong with it."""
    try:
        make().answer()
    except Exception:  # noqa: BLE001 - see above
        return


def _apart(mine: torch.Tensor, wanted: torch.Tensor) -> float:
    """How far one answer is from the other: see ``_MOST_ERROR``."""
    if not mine.is_floating_point():
        return float((mine != wanted).float().mean())
    length = wanted.float().norm().clamp_min(1e-30)
    return float((mine.float() - wanted.float()).norm() / length)
