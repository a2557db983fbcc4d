"""Chooses how each dense matrix is multiplied, for each number of lines that is captured."""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle, islice
from typing import NamedTuple, Protocol

import torch

from gatewayd_engine.tuning.clock import LaunchClock, surviving
from gatewayd_engine.tuning.matmul_candidates import DEFAULT, Candidates, Launch, multiply
from gatewayd_engine.tuning.table import NoMemory, TuningTable, case

STAGE = "choosing matrix products"
OP = "product"
_MEASURED_AT = (1, 8, 16, 32, 64, 128, 256, 512)
"""Numbers of lines; what lies between takes the choice of the next larger one."""
_COLD_BYTES = 1 << 30
"""Of weights that a timed graph reads in turn: twenty times what a second-level cache holds."""
_LEAST_LAUNCHES, _MOST_LAUNCHES = 3, 32
"""Of a graph that is timed."""
_SECONDS = 20.0
"""For measuring everything; what is not measured by then is measured at the next start."""
_MOST_ERROR = 1e-2
"""Of a line, relative to its length. Rounding to bfloat16 makes 2e-3 of it, partial sums of
bfloat16 twice as much; a product that leaves anything out makes more than a tenth."""
_CHECKED_LINES = 64
"""Compared at a time, in float32."""
_log = logging.getLogger(__name__)


class TunedMatmul(Protocol):
    """A matrix whose product is to be chosen.

    Attributes:
        matrix: shape ``[n, k]``.
        bias: shape ``[n]``, or None.
        launches: by number of lines, what multiplies them; torch does where there is none.
    """

    matrix: torch.Tensor
    bias: torch.Tensor | None
    launches: dict[int, Launch]


class MatmulShape(NamedTuple):
    """What products have in common that are chosen together."""

    rows: int
    columns: int
    dtype: torch.dtype
    has_bias: bool


class MatmulDisagrees(Exception):
    """A candidate computes something else than torch."""


def by_shape(products: Sequence[TunedMatmul]) -> dict[MatmulShape, list[TunedMatmul]]:
    """The products of each shape."""
    found: dict[MatmulShape, list[TunedMatmul]] = {}
    for product in products:
        weight = product.matrix
        rows, columns = weight.shape
        shape = MatmulShape(rows, columns, weight.dtype, product.bias is not None)
        found.setdefault(shape, []).append(product)
    return found


def measured_sizes(sizes: Sequence[int]) -> list[int]:
    """Those of some numbers of lines that are measured, the largest among them."""
    ordered = sorted(sizes)
    at = {min(bisect_left(ordered, size), len(ordered) - 1) for size in _MEASURED_AT}
    return [ordered[i] for i in sorted(at)]


@torch.inference_mode()
def choose_products(
    products: Sequence[TunedMatmul],
    sizes: Sequence[int],
    candidates: Sequence[Candidates],
    table: TuningTable,
    clock: LaunchClock,
    progress: Callable[[float], None],
    seconds: float = _SECONDS,
) -> None:
    """Fill in the ``launches`` of products.

    Args:
        products: the matrices of a model.
        sizes: the numbers of lines that will be captured.
        candidates: what competes with torch.
        table: what is known, and kept.
        clock: measures.
        progress: told the fraction that is done.
        seconds: nothing is measured after them. What is known is checked all the same.

    Raises:
        DeviceLost: nothing can be computed any more.
    """
    shapes, at = by_shape(products), measured_sizes(sizes)
    deadline = time.monotonic() + seconds
    done, without = 0, list[str]()
    for shape, alike in shapes.items():
        before = 0
        for size in at:
            between = [lines for lines in sizes if before < lines <= size]
            try:
                _Choice(shape, alike, size, candidates).make(between, table, clock, deadline)
            except NoMemory as error:
                without.append(f"{shape.rows} x {shape.columns} at {size} lines")
                _log.info("%s: %s", without[-1], error)
            before, done = size, done + 1
            progress(done / (len(at) * len(shapes)))
    if without:
        _log.warning(
            "too little memory to choose matrix products, which stay torch's until the next start:"
            " %s",
            ", ".join(without),
        )
    if table.measured:
        _log.info("%d matrix products were measured: %s", table.measured, table.path)


class _Choice:
    """The choice for one shape and number of lines.

    Raises:
        NoMemory: there is none for the operands.
    """

    def __init__(
        self,
        shape: MatmulShape,
        alike: Sequence[TunedMatmul],
        size: int,
        candidates: Sequence[Candidates],
    ) -> None:
        first = alike[0].matrix
        self._shape, self._alike, self._size = shape, alike, size
        self._launches: dict[str, Launch] = {DEFAULT: multiply}
        with surviving(first.device, "operands"):
            random = torch.Generator(first.device).manual_seed(size)
            self._x = torch.randn(
                (size, shape.columns), dtype=shape.dtype, device=first.device, generator=random
            )
            self._out = torch.empty((size, shape.rows), dtype=shape.dtype, device=first.device)
            self._wanted = torch.empty_like(self._out)
            for family in candidates:
                try:
                    self._launches |= family.of(self._x, first, alike[0].bias, self._out)
                except torch.OutOfMemoryError:
                    raise
                except Exception as error:  # noqa: BLE001 - of any kind, torch's product remains
                    _log.info("no candidates for %s: %s", shape, error)

    def make(
        self, sizes: Sequence[int], table: TuningTable, clock: LaunchClock, deadline: float
    ) -> None:
        """Choose, and check the choice at each number of lines that it is for."""
        shape, names = self._shape, list(self._launches)
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
        if table.known(which, names) is None and time.monotonic() >= deadline:
            return
        choice = table.chosen(which, names, partial(self._microseconds, clock), self._check)
        if choice == DEFAULT:
            return
        others = [lines for lines in sizes if lines != self._size]
        passing = table.passing(which, others, partial(self._check, choice))
        for lines in (*passing, self._size):
            for product in self._alike:
                product.launches[lines] = self._launches[choice]

    def _microseconds(self, clock: LaunchClock, name: str) -> float:
        launch = self._launches[name]
        wanted = -(-_COLD_BYTES // self._alike[0].matrix.nbytes)
        launches = min(max(wanted, _LEAST_LAUNCHES), _MOST_LAUNCHES)
        # The layers' own weights: where they all fit the cache, they do so in a step as well.
        in_turn = islice(cycle(self._alike), launches)
        with surviving(self._x.device, name):
            return clock([self._call(launch, product) for product in in_turn])

    def _call(self, launch: Launch, product: TunedMatmul) -> Callable[[], object]:
        weight, bias = product.matrix, product.bias
        return lambda: launch(self._x, weight, bias, self._out)

    def _check(self, name: str, lines: int | None = None) -> None:
        """Compare a candidate's answer of so many lines, or those that are measured, with torch's.

        Raises:
            MatmulDisagrees: they are not the same but for rounding.
            DeviceLost: nothing can be computed any more.
            NoMemory: the device has too little memory at the moment.
        """
        with surviving(self._x.device, name):
            self._compare(self._size if lines is None else lines, self._launches[name])

    def _compare(self, lines: int, launch: Launch) -> None:
        x, out, wanted = self._x[:lines], self._out[:lines], self._wanted[:lines]
        weight, bias = self._alike[0].matrix, self._alike[0].bias
        multiply(x, weight, bias, wanted)
        # What is not written shows.
        out.fill_(torch.nan)
        launch(x, weight, bias, out)
        errors = []
        for begin in range(0, lines, _CHECKED_LINES):
            some = wanted[begin : begin + _CHECKED_LINES].float()
            apart = (out[begin : begin + _CHECKED_LINES].float() - some).norm(dim=1)
            errors.append((apart / some.norm(dim=1).clamp_min(1e-30)).max())
        # The host waits here alone: this is done for each captured size, at each start.
        worst = torch.stack(errors).max().item()
        if not worst <= _MOST_ERROR:  # so that no number is not enough either
            raise MatmulDisagrees(f"its answer is {worst:.1e} away from torch's")
