"""Matmul kernels of plugins: selection for each quantized matrix, and checks before use."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from gatewayd_engine.model.batch_invariance import BatchInvariantMode
from gatewayd_engine.model.weights import dense, slice_rows
from gatewayd_hooks.host.errors import describe_error
from gatewayd_hooks.host.fence import StrategyFault
from gatewayd_hooks.multiplying import Form, Product
from gatewayd_hooks.quantization import GroupedWeight
from gatewayd_hooks.strategy import Kind

_log = logging.getLogger(__name__)

_CHECK_BATCH = 2
"""Batch size of the check that each matrix gets."""
_LARGE_CHECK_BATCH = 65
"""Batch size of a second check, once per ``Form``: beyond 16, 32 and 64 rows kernels use other
tiles, and here the last row is alone in its tile."""
_CHECKED_ROWS = 16
"""Rows of the matrix whose outputs are compared with those of the dequantized weight."""
_TOLERANCE = 0.1
"""Relative error allowed over all outputs. Rounding activations to 8-bit floats costs a third of
this; a weight packed in a wrong order gives an error of about 1."""
_ROW_TOLERANCE = 0.3
"""Relative error allowed for a single row of the matrix or of the batch, which may have as few as
one or two outputs."""
_TINY_ROW = 0.01
"""Rows with a norm below this fraction of the mean may be lost: in float16 their scales are 0."""
_BIAS = 0.1
"""Weight of the bias in the expected magnitude: it is rounded with the sum, but is no sum."""
_REMEDY = "take it out of [quantizer] kernels"


class UnfitMatmul(Exception):
    """A plugin's matmul raised or gave wrong results; the message names the plugin."""


class MatmulPlugin(NamedTuple):
    """An opened strategy with matmul kernels.

    Attributes:
        name: as in the configuration.
        strategy: an implementation of ``Multiplies``; its calls are timed.
    """

    name: str
    strategy: Any


class MatmulPlugins:
    """The configured matmul plugins, tried in order for each quantized matrix.

    Args:
        matmul_plugins: in their order of priority.
    """

    def __init__(self, matmul_plugins: Sequence[MatmulPlugin] = ()) -> None:
        self._matmul_plugins = tuple(matmul_plugins)
        self._multiplied: Counter[str] = Counter()
        self._checked: set[tuple[str, Form]] = set()
        self._num_matrices = 0

    def __len__(self) -> int:
        return len(self._matmul_plugins)

    def __iter__(self) -> Iterator[MatmulPlugin]:
        return iter(self._matmul_plugins)

    def make(
        self, weight: GroupedWeight, bias: torch.Tensor | None, dtype: torch.dtype
    ) -> PluginLinear | None:
        """Make a linear layer with the first plugin that supports a weight; None if none does.

        Args:
            weight: on the device where it is to be multiplied.
            bias: of ``dtype``, shape ``[rows]``.
            dtype: of activations.

        Raises:
            UnfitMatmul: a plugin raised, or its results are wrong.
        """
        form = _form(weight, bias, dtype)
        self._num_matrices += 1
        for name, strategy in self._matmul_plugins:
            who = f"{Kind.QUANTIZER}.{name}"
            try:
                # Either may decline: by the form alone, or after a look at the values.
                product = strategy.take(form, weight, bias) if strategy.suits(form) else None
                if product is None:
                    continue
                is_new = (name, form) not in self._checked
                counts = (_CHECK_BATCH, _LARGE_CHECK_BATCH) if is_new else (_CHECK_BATCH,)
                problem = _find_problem(product, form, weight, bias, counts)
                # Even if a problem was found: that ends the start.
                self._checked.add((name, form))
                made = PluginLinear(name, product)
            except Exception as error:
                raise UnfitMatmul(f"{who} raised {describe_error(error)}; {_REMEDY}") from error
            if problem:
                raise UnfitMatmul(f"{who} {problem}; {_REMEDY}")
            self._multiplied[name] += 1
            return made
        return None

    def record_skipped(self) -> None:
        """Count a quantized matrix that only the engine's own kernels can multiply."""
        self._num_matrices += 1

    def log_summary(self) -> None:
        """Log how many matrices each plugin multiplies; call after the model is loaded."""
        for name, _ in self._matmul_plugins:
            count = self._multiplied[name]
            level = logging.INFO if count else logging.WARNING
            _log.log(
                level,
                "%s.%s multiplies %d of %d low-bit matrices",
                *(Kind.QUANTIZER, name, count, self._num_matrices),
            )


class PluginLinear(BatchInvariantMode):
    """Linear layer that calls a plugin's matmul.

    Args:
        name: of the plugin.
        product: made by the plugin, and checked.
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
            StrategyFault: the plugin raised; there is no fallback, as only it has the weight.
        """
        try:
            # Slow, but where rows depend on each other only single ones are batch-invariant.
            if self.is_steady and self._by_row and len(x) > 1:
                return self._one_by_one(x, out)
            return self._product(x, out=out)
        except BaseException as error:
            raise StrategyFault(Kind.QUANTIZER, repr(error), self._name) from error

    def _one_by_one(self, x: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
        made = torch.cat([self._product(row) for row in torch.split(x, 1)])
        return made if out is None else out.copy_(made)

    def add_to(self, onto: torch.Tensor, x: torch.Tensor) -> torch.Tensor | None:
        """See ``LinearOp``; the addition is deferred to the next norm, which reads ``onto``."""
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
def _find_problem(
    product: Product,
    form: Form,
    weight: GroupedWeight,
    bias: torch.Tensor | None,
    counts: Sequence[int],
) -> str:
    """Compare products of random batches with the dequantized weight.

    Args:
        product: made by the plugin.
        form: of the weight.
        weight: that it should multiply with.
        bias: that it should add.
        counts: batch sizes to check.

    Returns:
        What is wrong, as the rest of a sentence about the plugin; empty if nothing is.
    """
    # On the CPU: the same inputs on every device and at every start.
    generator = torch.Generator().manual_seed(form.rows)
    count = min(_CHECKED_ROWS, form.rows)
    # Spread over the whole matrix, both ends included.
    seen = torch.linspace(0, form.rows - 1, count, device=form.device).long()
    numbers = dense(slice_rows(weight, seen)).double()
    add = numbers.new_zeros(len(seen)) if bias is None else bias[seen].double()
    lengths = torch.linalg.vector_norm(numbers, dim=1)
    lengths = lengths.clamp_min(_TINY_ROW * lengths.square().mean().sqrt()) + _BIAS * add.abs()
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
    """Whether errors are within tolerance, overall and by row of each side; False for a NaN."""
    length = torch.linalg.vector_norm
    is_all = length(errors) <= _TOLERANCE * length(lengths)
    is_each = [
        (length(errors, dim=d) <= _ROW_TOLERANCE * length(lengths, dim=d)).all() for d in (0, 1)
    ]
    return bool(is_all & is_each[0] & is_each[1])
