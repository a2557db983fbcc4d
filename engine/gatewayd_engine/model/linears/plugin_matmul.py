"""Products that plugins bring: who is asked for a matrix, and what is tried before it serves."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from gatewayd_engine.model.batch_invariance import Unsteady
from gatewayd_engine.model.weights import dense, some_rows
from gatewayd_hooks.host.errors import told
from gatewayd_hooks.host.fence import StrategyFault
from gatewayd_hooks.multiplying import Form, Product
from gatewayd_hooks.quantization import GroupedWeight
from gatewayd_hooks.strategy import Kind

_log = logging.getLogger(__name__)

_TRIED = 2
"""Lines of the first product of a matrix."""
_MANY = 65
"""The same of one that stands for all of its form: beyond 16, 32 and 64 lines kernels are others,
and the last line is alone in its tile."""
_SEEN = 16
"""Rows of the matrix that are computed again from the numbers of the weight."""
_FAR = 0.1
"""Of their length: rounding activations to 8-bit floats moves them by a third of that, and what is
packed in a wrong order by all of it."""
_ASTRAY = 0.3
"""The same of one row, or one line, which may be of two numbers, or of one."""
_FAINT = 0.01
"""Rows so much shorter than the others may be lost: in float16 their scales are 0."""
_BIAS = 0.1
"""How far the length of a bias counts: it is rounded with the sum, but is no sum."""
_WAY_OUT = "take it out of [quantizer] kernels"


class UnfitProduct(Exception):
    """A plugin cannot have a matrix multiplied; the sentence names the plugin, not the matrix."""


class Bringer(NamedTuple):
    """A strategy that multiplies, open.

    Attributes:
        name: as the configuration has it.
        strategy: it ``Multiplies``; its calls are timed.
    """

    name: str
    strategy: Any


class Bringers:
    """Asks strategies for products, one after the other.

    Args:
        bringers: in their order.
    """

    def __init__(self, bringers: Sequence[Bringer] = ()) -> None:
        self._bringers = tuple(bringers)
        self._taken: Counter[str] = Counter()
        self._tried: set[tuple[str, Form]] = set()
        self._met = 0

    def __len__(self) -> int:
        return len(self._bringers)

    def __iter__(self) -> Iterator[Bringer]:
        return iter(self._bringers)

    def make(
        self, weight: GroupedWeight, bias: torch.Tensor | None, dtype: torch.dtype
    ) -> BroughtLinear | None:
        """The product of the first who takes a weight over; None if nobody does.

        Args:
            weight: where it is to be multiplied.
            bias: of type ``dtype``, shape ``[rows]``.
            dtype: of activations.

        Raises:
            UnfitProduct: one of them failed, or what it made is no product of the weight.
        """
        form = _form(weight, bias, dtype)
        self._met += 1
        for name, strategy in self._bringers:
            who = f"{Kind.QUANTIZER}.{name}"
            try:
                product = strategy.take(form, weight, bias) if strategy.suits(form) else None
                if product is None:
                    continue
                counts = (_TRIED,) if (name, form) in self._tried else (_TRIED, _MANY)
                verdict = _verdict(product, form, weight, bias, counts)
                self._tried.add((name, form))
                made = BroughtLinear(name, product)
            except Exception as error:
                raise UnfitProduct(f"{who} raised {told(error)}; {_WAY_OUT}") from error
            if verdict:
                raise UnfitProduct(f"{who} {verdict}; {_WAY_OUT}")
            self._taken[name] += 1
            return made
        return None

    def pass_over(self) -> None:
        """Count a matrix of few bits that is the engine's, whoever there is."""
        self._met += 1

    def tell(self) -> None:
        """Say in the log what each of them multiplies, once all matrices are made."""
        for name, _ in self._bringers:
            taken = self._taken[name]
            level = logging.INFO if taken else logging.WARNING
            _log.log(
                level,
                "%s.%s multiplies %d of %d matrices of few bits",
                *(Kind.QUANTIZER, name, taken, self._met),
            )


class BroughtLinear(Unsteady):
    """A plugin's product in the place of the engine's.

    Args:
        name: of the plugin.
        product: made, and tried.
    """

    __slots__ = ("_by_row", "_name", "_product", "nbytes", "rounds_inputs")

    def __init__(self, name: str, product: Product) -> None:
        super().__init__()
        self._name = name
        self._product = product
        self.nbytes = product.nbytes
        self.rounds_inputs = product.rounds_inputs
        self._by_row = not product.is_steady

    def __call__(self, x: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        """See ``LinearOp``.

        Raises:
            StrategyFault: whatever the plugin raises: nothing else has its weight.
        """
        try:
            if self.is_steady and self._by_row and len(x) > 1:
                return self._one_by_one(x, out)
            return self._product(x, out=out)
        except BaseException as error:
            raise StrategyFault(Kind.QUANTIZER, repr(error), self._name) from error

    def _one_by_one(self, x: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
        made = torch.cat([self._product(row) for row in torch.split(x, 1)])
        return made if out is None else out.copy_(made)

    def add_to(self, onto: torch.Tensor, x: torch.Tensor) -> torch.Tensor | None:
        """See ``LinearOp``; the next norm reads the stream anyway, and adds."""
        return self(x)


def _form(weight: GroupedWeight, bias: torch.Tensor | None, dtype: torch.dtype) -> Form:
    codes = weight.codes
    return Form(
        rows=codes.shape[0],
        columns=codes.shape[1],
        codes=codes.dtype,
        bits=weight.bits,
        groups=weight.scales.shape[1],
        has_offsets=weight.offsets is not None,
        is_ordered=weight.group_of is None,
        activations=weight.activations,
        has_bias=bias is not None,
        dtype=dtype,
        device=codes.device,
        capability=torch.cuda.get_device_capability(codes.device) if codes.is_cuda else None,
    )


@torch.no_grad()
def _verdict(
    product: Product,
    form: Form,
    weight: GroupedWeight,
    bias: torch.Tensor | None,
    counts: Sequence[int],
) -> str:
    """Multiply so many lines and look at some of what comes out: what is wrong, if anything."""
    generator = torch.Generator().manual_seed(form.rows)
    seen = torch.linspace(0, form.rows - 1, min(_SEEN, form.rows), device=form.device).long()
    numbers = dense(some_rows(weight, seen)).double()
    add = numbers.new_zeros(len(seen)) if bias is None else bias[seen].double()
    lengths = torch.linalg.vector_norm(numbers, dim=1)
    lengths = lengths.clamp_min(_FAINT * lengths.square().mean().sqrt()) + _BIAS * add.abs()
    for count in counts:
        x = torch.randn((count, form.columns), generator=generator).to(form.device, form.dtype)
        made = product(x)
        if not isinstance(made, torch.Tensor) or made.shape != (count, form.rows):
            what = list(made.shape) if isinstance(made, torch.Tensor) else type(made).__name__
            return f"made {what} of {[count, form.columns]}, not {[count, form.rows]}"
        if made.dtype != form.dtype or made.device != form.device:
            return f"made {made.dtype} on {made.device}, not {form.dtype} on {form.device}"
        errors = made[:, seen].double() - torch.addmm(add, x.double(), numbers.t())
        if not _is_near(errors, lengths.expand_as(errors)):
            return f"made numbers that are far from those of the weight, for {count} rows"
    return ""


def _is_near(errors: torch.Tensor, lengths: torch.Tensor) -> bool:
    """Whether all of them are small, and those of each line and each row; never if one is a NaN."""
    length = torch.linalg.vector_norm
    is_all = length(errors) <= _FAR * length(lengths)
    is_each = [(length(errors, dim=d) <= _ASTRAY * length(lengths, dim=d)).all() for d in (0, 1)]
    return bool(is_all & is_each[0] & is_each[1])
