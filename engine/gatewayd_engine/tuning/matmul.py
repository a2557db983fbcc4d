"""Autotuning of dense matmuls, for each captured number of rows."""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle, islice
from typing import NamedTuple, Protocol

import torch

from gatewayd_engine.tuning.clock import LaunchClock, device_errors
from gatewayd_engine.tuning.matmul_candidates import DEFAULT, Candidates, Launch, multiply
from gatewayd_engine.tuning.table import NoMemory, TuningTable, case

STAGE = "autotuning matmuls"
OP = "matmul"
_MEASURED_AT = (1, 8, 16, 32, 64, 128, 256, 512)
"""Measured numbers of rows; those in between use the choice of the next larger one."""
_COLD_BYTES = 1 << 30
"""Bytes of weights that a timed graph cycles through: twenty times the size of an L2 cache."""
_LEAST_LAUNCHES, _MOST_LAUNCHES = 3, 32
"""Launches in a timed graph."""
_SECONDS = 20.0
"""Time limit of all measurements; the remaining ones are made at the next start."""
_MOST_ERROR = 1e-2
"""Maximum relative error of a row's norm. Rounding to bfloat16 causes 2e-3, partial sums in
bfloat16 twice as much; leaving out a part of the product more than 0.1."""
_CHECKED_ROWS = 64
"""Rows compared at a time, in float32."""
_log = logging.getLogger(__name__)


class TunedMatmul(Protocol):
    """A matrix whose matmul implementation is to be chosen.

    Attributes:
        matrix: shape ``[n, k]``.
        bias: shape ``[n]``, or None.
        launches: implementations by number of rows; torch's matmul for others.
    """

    matrix: torch.Tensor
    bias: torch.Tensor | None
    launches: dict[int, Launch]


class MatmulShape(NamedTuple):
    """Common properties of matmuls that are tuned together."""

    rows: int
    columns: int
    dtype: torch.dtype
    has_bias: bool


class MatmulMismatch(Exception):
    """A candidate's result differs from torch's."""


def by_shape(matmuls: Sequence[TunedMatmul]) -> dict[MatmulShape, list[TunedMatmul]]:
    """Group matmuls by shape."""
    found: dict[MatmulShape, list[TunedMatmul]] = {}
    for matmul in matmuls:
        weight = matmul.matrix
        rows, columns = weight.shape
        shape = MatmulShape(rows, columns, weight.dtype, matmul.bias is not None)
        found.setdefault(shape, []).append(matmul)
    return found


def measured_sizes(sizes: Sequence[int]) -> list[int]:
    """Return the numbers of rows to be measured, including the largest one."""
    ordered = sorted(sizes)
    # The captured size at or above each; a set, as several may have the same one.
    at = {min(bisect_left(ordered, size), len(ordered) - 1) for size in _MEASURED_AT}
    return [ordered[i] for i in sorted(at)]


@torch.inference_mode()
def choose_matmuls(
    matmuls: Sequence[TunedMatmul],
    sizes: Sequence[int],
    candidates: Sequence[Candidates],
    table: TuningTable,
    clock: LaunchClock,
    progress: Callable[[float], None],
    seconds: float = _SECONDS,
) -> None:
    """Fill in the ``launches`` of matmuls.

    Args:
        matmuls: the matrices of a model.
        sizes: numbers of rows that will be captured.
        candidates: alternatives to torch's matmul.
        table: known choices; updated with new ones.
        clock: measures candidates.
        progress: called with the completed fraction.
        seconds: time limit of measurements. Known choices are checked regardless.

    Raises:
        DeviceLost: the device is unusable.
    """
    shapes, at = by_shape(matmuls), measured_sizes(sizes)
    deadline = time.monotonic() + seconds
    done, without = 0, list[str]()
    for shape, alike in shapes.items():
        before = 0
        for size in at:
            # All sizes that use this measurement: those above the last measured one.
            between = [lines for lines in sizes if before < lines <= size]
            try:
                _Choice(shape, alike, size, candidates).choose(between, table, clock, deadline)
            except NoMemory as error:
                without.append(f"{shape.rows} x {shape.columns} at {size} rows")
                _log.info("cannot autotune matmul %s: %s", without[-1], error)
            before, done = size, done + 1
            progress(done / (len(at) * len(shapes)))
    if without:
        _log.warning(
            "too little memory to autotune matmuls; torch's are used until the next start: %s",
            ", ".join(without),
        )
    if table.measured:
        _log.info("autotuning measured %d matmuls; results are in %s", table.measured, table.path)


class _Choice:
    """The choice for one shape and number of rows.

    Raises:
        NoMemory: there is too little memory for the operands.
    """

    def __init__(
        self,
        shape: MatmulShape,
        alike: Sequence[TunedMatmul],
        size: int,
        candidates: Sequence[Candidates],
    ) -> None:
        # One matrix stands for all of its shape: algorithms depend on shapes, not on values.
        first = alike[0].matrix
        self._shape, self._alike, self._size = shape, alike, size
        self._launches: dict[str, Launch] = {DEFAULT: multiply}
        with device_errors(first.device, "operands"):
            # The same operands at each start, so that a check that has passed passes again.
            random = torch.Generator(first.device).manual_seed(size)
            self._x = torch.randn(
                (size, shape.columns), dtype=shape.dtype, device=first.device, generator=random
            )
            self._out = torch.empty((size, shape.rows), dtype=shape.dtype, device=first.device)
            self._wanted = torch.empty_like(self._out)
            for family in candidates:
                try:
                    # With the actual operands, as candidates depend on alignment and strides, too.
                    self._launches |= family.of(self._x, first, alike[0].bias, self._out)
                # Becomes ``NoMemory`` in the context above.
                except torch.OutOfMemoryError:
                    raise
                except Exception as error:  # noqa: BLE001 - any error; torch's matmul remains
                    _log.info("no candidate matmuls for %s: %s", shape, error)

    def choose(
        self, sizes: Sequence[int], table: TuningTable, clock: LaunchClock, deadline: float
    ) -> None:
        """Choose an implementation, and check it at each number of rows that it is used for."""
        shape, names = self._shape, list(self._launches)
        # Nothing to choose, and nothing to record.
        if len(names) == 1:
            return
        which = case(
            OP,
            str(shape.dtype).removeprefix("torch."),
            m=self._size,
            n=shape.rows,
            k=shape.columns,
            bias=int(shape.has_bias),
        )
        # The limit is for measurements; known choices are only checked, which is short.
        if table.known(which, names) is None and time.monotonic() >= deadline:
            return
        choice = table.chosen(which, names, partial(self._microseconds, clock), self._check)
        if choice == DEFAULT:
            return
        others = [lines for lines in sizes if lines != self._size]
        passing = table.passing(which, others, partial(self._check, choice))
        for lines in (*passing, self._size):
            for matmul in self._alike:
                matmul.launches[lines] = self._launches[choice]

    def _microseconds(self, clock: LaunchClock, name: str) -> float:
        launch = self._launches[name]
        wanted = -(-_COLD_BYTES // self._alike[0].matrix.nbytes)
        launches = min(max(wanted, _LEAST_LAUNCHES), _MOST_LAUNCHES)
        # The layers' own weights: if all of them fit in the cache, they do so in a step as well.
        matmuls = islice(cycle(self._alike), launches)
        with device_errors(self._x.device, name):
            return clock([self._call(launch, matmul) for matmul in matmuls])

    def _call(self, launch: Launch, matmul: TunedMatmul) -> Callable[[], object]:
        weight, bias = matmul.matrix, matmul.bias
        # A function of its own, so that each call binds its own matrix.
        return lambda: launch(self._x, weight, bias, self._out)

    def _check(self, name: str, lines: int | None = None) -> None:
        """Compare a candidate's result for so many rows, or those measured, with torch's.

        Raises:
            MatmulMismatch: the results differ by more than rounding.
            DeviceLost: the device is unusable.
            NoMemory: the device has too little memory at the moment.
        """
        with device_errors(self._x.device, name):
            self._compare(self._size if lines is None else lines, self._launches[name])

    def _compare(self, lines: int, launch: Launch) -> None:
        x, out, wanted = self._x[:lines], self._out[:lines], self._wanted[:lines]
        weight, bias = self._alike[0].matrix, self._alike[0].bias
        multiply(x, weight, bias, wanted)
        # Elements that are not written stay NaN.
        out.fill_(torch.nan)
        launch(x, weight, bias, out)
        errors = []
        for begin in range(0, lines, _CHECKED_ROWS):
            some = wanted[begin : begin + _CHECKED_ROWS].float()
            apart = (out[begin : begin + _CHECKED_ROWS].float() - some).norm(dim=1)
            errors.append((apart / some.norm(dim=1).clamp_min(1e-30)).max())
        # The only synchronisation: this is done for each captured size, at each start.
        worst = torch.stack(errors).max().item()
        # Relative to the row's norm: single elements may be near zero.
        if not worst <= _MOST_ERROR:  # also true for NaN
            raise MatmulMismatch(f"its result differs from torch's by {worst:.1e}")
