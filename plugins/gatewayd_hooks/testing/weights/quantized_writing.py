"""Checks of quantizers that write checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from gatewayd_hooks.quantization import (
    Announcement,
    Fit,
    GroupedWeight,
    Matrix,
    Prunes,
    Quantizes,
    Reads,
    Scheme,
    Site,
    Weight,
    Writes,
)
from gatewayd_hooks.testing.weights.few_bits import check, dense, equal

_PREFIX = "model.layers.0.mlp."
_ROWS, _COLUMNS = 128, 256
MATRICES = tuple(Matrix(f"{_PREFIX}{name}_proj", _ROWS, _COLUMNS) for name in ("gate", "up"))


class Writer(NamedTuple):
    """Quantizer that writes checkpoints, and the scheme that reads them."""

    strategy: Writes
    scheme: Scheme
    matrices: tuple[Matrix, ...]


def writer_of(strategy: object) -> Writer | None:
    """Return what a quantizer writes with its own settings; None if it does not write."""
    if not isinstance(strategy, Writes):
        return None
    assert isinstance(strategy, Reads), "a quantizer that writes a format must also read it"
    names = [matrix.name for matrix in MATRICES]
    scheme = strategy.scheme(Announcement(strategy.announce(names, []), "here"))
    return Writer(strategy, scheme, MATRICES)


def check_announcement(strategy: object) -> None:
    """Check that the announcement distinguishes packed from plain matrices."""
    if not (isinstance(strategy, Writes) and isinstance(strategy, Reads)):
        return
    packed, plain = (Matrix(f"{_PREFIX}{name}_proj", 128, 128) for name in ("down", "up"))
    try:
        announced = strategy.announce([packed.name], [plain.name])
    except ValueError:
        return  # The format cannot express it.
    scheme = strategy.scheme(Announcement(announced, "here"))
    assert scheme.stored(packed) is not None
    assert scheme.stored(plain) is None


def check_read_back(writer: Writer, matrix: Matrix, weight: Weight) -> None:
    """Check that packed tensors match the scheme, and are read back unchanged."""
    check(weight, matrix)
    assert isinstance(weight, GroupedWeight)
    tensors = writer.strategy.pack(matrix, weight)
    needed = writer.scheme.stored(matrix)
    assert needed
    forms = {**needed, **writer.scheme.optional(matrix)}
    assert needed.keys() <= tensors.keys() <= forms.keys()
    for suffix, tensor in tensors.items():
        assert tuple(tensor.shape) in {form.shape for form in forms[suffix]}, suffix
    read = writer.scheme.weight(matrix, tensors.__getitem__)
    assert torch.equal(dense(read), dense(weight))
    if not isinstance(read, GroupedWeight):
        return  # A reader may dequantize.
    for one, other in ((read.codes, weight.codes), (read.scales, weight.scales)):
        assert torch.equal(one.view(torch.uint8), other.view(torch.uint8))


def site(*, is_foldable: bool = False, spare: int = 0) -> Site:
    """Return ``MATRICES`` with correlated inputs of different magnitudes.

    Args:
        is_foldable: whether inputs may be divided by any factors.
        spare: number of columns that are always 0.
    """
    generator = torch.Generator().manual_seed(11)
    # Correlated columns, between which errors can be compensated.
    mixed = torch.randn(_COLUMNS, _COLUMNS, generator=generator) / _COLUMNS**0.5
    inputs = torch.randn(600, _COLUMNS, generator=generator) @ mixed
    # Magnitudes over two orders, in random order: the large ones matter most.
    inputs *= torch.logspace(-1.5, 0.5, _COLUMNS)[torch.randperm(_COLUMNS, generator=generator)]
    inputs[:, :spare] = 0.0
    weights = tuple(torch.randn(m.rows, m.columns, generator=generator) for m in MATRICES)
    gram = inputs.double().t() @ inputs.double() / len(inputs)

    def loss(others: Sequence[torch.Tensor]) -> float:
        return lost(weights, others, gram)

    keep: Callable[[torch.Tensor], torch.Tensor] | None = torch.clone if is_foldable else None
    return Site(MATRICES, weights, inputs, gram, loss, keep)


def fit_lost(one: Site, fit: Fit) -> float:
    """Return the mean squared change of a site's outputs."""
    factors = 1.0 if fit.factors is None else fit.factors
    return lost(one.weights, [dense(weight) / factors for weight in fit.weights], one.gram)


def nearest_lost(writer: Writer, one: Site) -> float:
    """Return the mean squared change with matrices rounded to nearest."""
    pairs = zip(one.matrices, one.weights, strict=True)
    return lost(one.weights, [dense(writer.strategy.nearest(*pair)) for pair in pairs], one.gram)


def lost(
    weights: Sequence[torch.Tensor], others: Sequence[torch.Tensor], gram: torch.Tensor
) -> float:
    """Return the mean squared difference of the outputs of two sets of weights."""
    errors = torch.cat([(o - w).double() for w, o in zip(weights, others, strict=True)])
    return float(((errors @ gram) * errors).sum()) / len(errors)


def check_pruned(quantizer: Quantizes, strategy: Prunes) -> None:
    """Check that pruning by inputs loses less than by magnitude, and is reproducible."""
    for spare in (0, 9):
        one, other = site(spare=spare), site(spare=spare)
        made, plain = strategy.prune(one), []
        for pair, weight in zip(zip(one.matrices, one.weights, strict=True), made, strict=True):
            check(weight, pair[0])
            largest = quantizer.quantize(*pair)
            assert largest is not None
            plain.append(dense(largest))
        by_inputs = lost(one.weights, [dense(weight) for weight in made], one.gram)
        assert by_inputs < lost(one.weights, plain, one.gram)
        assert all(map(equal, made, strategy.prune(one)))
        assert all(map(torch.equal, other.weights, one.weights))
        assert torch.equal(other.gram, one.gram)
