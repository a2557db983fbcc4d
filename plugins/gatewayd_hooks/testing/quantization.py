"""What every quantizer must do, whichever bits it keeps."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from gatewayd_hooks.quantization import (
    Announcement,
    GroupedWeight,
    Matrix,
    QuantizerResources,
    QuantizerStrategy,
    Quantizes,
    Reads,
    Scheme,
    SparseWeight,
    Stored,
    Weight,
)

_STORED = [Matrix("model.layers.0.mlp.down_proj", *shape) for shape in ((128, 128), (256, 128))]
_SHAPES = ((64, 64), (5, 256), (256, 5), (1, 128), (7, 1))
_FLOATS = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
_INTEGERS = {
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
}
_EIGHT_BITS = (torch.uint8, torch.int8)
_FLOAT_ERROR = 2.0**-4
"""Of a number of three bits behind the point, relative."""
_LEAST_FLOAT = 2.0**-18
"""Half of the least number of e4m3, as part of the largest."""


def _random(stored: Stored, generator: torch.Generator) -> torch.Tensor:
    """Any bits for integers, and for floats numbers of the size of scales."""
    if stored.dtype in _INTEGERS:
        dtype = _INTEGERS[stored.dtype]
        bounds = torch.iinfo(dtype)
        return torch.randint(bounds.min, bounds.max, stored.shape, generator=generator, dtype=dtype)
    made = torch.rand(stored.shape, generator=generator) + 0.5
    return made.to(_FLOATS[stored.dtype])


def _normal(rows: int, columns: int, scale: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rows * columns)
    return torch.randn((rows, columns), generator=generator) * scale


def _dense(weight: Weight) -> torch.Tensor:
    """What a weight means, element by element."""
    if isinstance(weight, torch.Tensor):
        return weight
    if isinstance(weight, SparseWeight):
        return weight.values
    scales, offsets = (_spread(weight, each) for each in (weight.scales, weight.offsets))
    made = weight.codes.float() * scales
    return made if weight.offsets is None else made + offsets


def _spread(weight: GroupedWeight, numbers: torch.Tensor | None) -> torch.Tensor:
    """What each group has, for each column."""
    if numbers is None:
        return torch.zeros(())
    columns = weight.codes.shape[1]
    groups = torch.arange(columns) // max(1, columns // numbers.shape[1])
    return numbers[:, groups if weight.group_of is None else weight.group_of.long()]


def _check(weight: Weight, matrix: Matrix) -> None:
    """Look at what must hold for every weight of a matrix."""
    shape = (matrix.rows, matrix.columns)
    if isinstance(weight, torch.Tensor):
        assert tuple(weight.shape) == shape
        assert weight.is_floating_point()
        return
    if isinstance(weight, SparseWeight):
        assert tuple(weight.values.shape) == shape
        assert weight.values.is_floating_point()
        filled = torch.unflatten(weight.values != 0, 1, (-1, 4)).sum(-1)
        assert int(filled.max()) <= 2, "of four neighbours two are zeros"
        return
    assert tuple(weight.codes.shape) == shape
    assert weight.codes.element_size() == 1, "a code is a byte"
    groups = weight.scales.shape[1]
    for numbers in (weight.scales, weight.offsets):
        if numbers is not None:
            assert tuple(numbers.shape) == (matrix.rows, groups)
            assert numbers.dtype == torch.float32
            assert numbers.isfinite().all()
    if weight.group_of is None:
        assert matrix.columns % groups == 0, "groups of neighbours are of one size"
    else:
        assert tuple(weight.group_of.shape) == (matrix.columns,)
        assert weight.group_of.dtype == torch.int32
        assert 0 <= int(weight.group_of.min()) <= int(weight.group_of.max()) < groups
    if weight.codes.dtype in _EIGHT_BITS:
        half = 1 << (weight.bits - 1)
        least, most = (0, 2 * half - 1) if weight.codes.dtype == torch.uint8 else (-half, half - 1)
        assert least <= int(weight.codes.min()) <= int(weight.codes.max()) <= most


def _equal(one: Weight, other: Weight) -> bool:
    if not (isinstance(one, GroupedWeight) and isinstance(other, GroupedWeight)):
        return type(one) is type(other) and torch.equal(_dense(one), _dense(other))
    return all(
        torch.equal(ours, theirs)
        if isinstance(ours, torch.Tensor) and isinstance(theirs, torch.Tensor)
        else ours == theirs
        for ours, theirs in zip(one, other, strict=True)
    )


class QuantizerConformance:
    """Subclass it and build your quantizer in ``make``.

    One that reads checkpoints also says what they announce, in ``announced`` and ``damages``.
    """

    def make(self) -> QuantizerStrategy:
        """Build the quantizer; the tests open and close it."""
        raise NotImplementedError("return your quantizer, built and not opened")

    def announced(self) -> Mapping[str, Any]:
        """What a checkpoint of the format says: its ``quantization_config``."""
        pytest.fail("it reads checkpoints: return from announced() what one of them says")

    def damages(self) -> Sequence[tuple[Mapping[str, Any], str]]:
        """Fields that make an announcement wrong, and the word that the refusal must have."""
        pytest.fail("it reads checkpoints: return from damages() what it refuses in them")

    def sample(
        self, forms: Mapping[str, Stored], generator: torch.Generator
    ) -> dict[str, torch.Tensor]:
        """Tensors of one matrix that could be in a file; any bits, if they all mean something."""
        return {suffix: _random(stored, generator) for suffix, stored in forms.items()}

    @contextmanager
    def opened(self) -> Iterator[QuantizerStrategy]:
        """A quantizer in use."""
        quantizer = self.make()
        try:
            quantizer.open(QuantizerResources(folder="", device="cpu"))
            yield quantizer
        finally:
            quantizer.close()

    def _schemes(self) -> Iterator[Scheme]:
        """How a checkpoint is stored, once; never of one that reads none."""
        with self.opened() as quantizer:
            if isinstance(quantizer, Reads):
                yield quantizer.scheme(Announcement(self.announced(), "here"))

    def _quantizing(self) -> Iterator[Quantizes]:
        """It, once; never one that quantizes nothing itself."""
        with self.opened() as quantizer:
            if isinstance(quantizer, Quantizes):
                yield quantizer

    def _tensors(self, scheme: Scheme, matrix: Matrix) -> dict[str, torch.Tensor]:
        forms = scheme.stored(matrix)
        assert forms, "which tensors are stored of a plain matrix?"
        first = {suffix: allowed[0] for suffix, allowed in forms.items()}
        return self.sample(first, torch.Generator().manual_seed(5))

    def test_closing_it_unopened_is_harmless(self) -> None:
        self.make().close()

    def test_it_reads_checkpoints_or_quantizes(self) -> None:
        with self.opened() as quantizer:
            assert isinstance(quantizer, Reads | Quantizes)

    def test_a_wrong_announcement_is_refused_by_its_field(self) -> None:
        with self.opened() as quantizer:
            if not isinstance(quantizer, Reads):
                return
            for changes, word in self.damages():
                values = {**self.announced(), **changes}
                with pytest.raises(ValueError, match=rf"^here.*{re.escape(word)}"):
                    quantizer.scheme(Announcement(values, "here"))

    def test_what_must_be_stored_and_what_may_be_are_told_apart(self) -> None:
        for scheme in self._schemes():
            for matrix in _STORED:
                needed, rest = scheme.stored(matrix), scheme.optional(matrix)
                assert needed
                assert not needed.keys() & rest.keys()
                for forms in (*needed.values(), *rest.values()):
                    assert forms
                    assert all(form.dtype in {**_FLOATS, **_INTEGERS} for form in forms)

    def test_what_is_stored_becomes_a_weight_of_the_matrix(self) -> None:
        for scheme in self._schemes():
            for matrix in _STORED:
                tensors = self._tensors(scheme, matrix)
                before = {suffix: tensor.clone() for suffix, tensor in tensors.items()}
                weight = scheme.weight(matrix, tensors.__getitem__)
                _check(weight, matrix)
                assert _equal(weight, scheme.weight(matrix, before.__getitem__))

    def test_scales_that_are_not_finite_are_refused(self) -> None:
        for scheme in self._schemes():
            tensors = self._tensors(scheme, _STORED[0])
            wide = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
            for suffix, tensor in tensors.items():
                if tensor.dtype not in wide:
                    continue
                broken = tensor.clone()
                broken.view(-1)[-1] = float("inf")
                changed = {**tensors, suffix: broken}
                with pytest.raises(ValueError, match=r"\w"):
                    scheme.weight(_STORED[0], changed.__getitem__)

    def test_every_number_is_rounded_to_the_nearest(self) -> None:
        """Of integers by half a step of its group at most; of floats by a sixteenth of itself.

        What two of four neighbours leave is not rounded.
        """
        for quantizer in self._quantizing():
            for shape in _SHAPES:
                for scale in (1.0, 1e-20, 1e20):
                    weight, matrix = _normal(*shape, scale), Matrix("m", *shape)
                    made = quantizer.quantize(matrix, weight)
                    if made is None:
                        continue
                    _check(made, matrix)
                    error = (_dense(made) - weight).abs()
                    if isinstance(made, SparseWeight):
                        assert not error[made.values != 0].any()
                    elif isinstance(made, torch.Tensor):
                        least = weight.abs().amax(1, keepdim=True) * _LEAST_FLOAT
                        assert (error <= torch.maximum(weight.abs() * _FLOAT_ERROR, least)).all()
                    elif made.codes.dtype in _EIGHT_BITS:
                        step = _spread(made, made.scales).abs()
                        assert (error <= 0.501 * step).all()
                    else:
                        least = _spread(made, made.scales).abs() * 2.0**-6
                        assert (error <= torch.maximum(weight.abs() * _FLOAT_ERROR, least)).all()

    def test_rows_of_zeros_stay_zeros(self) -> None:
        for quantizer in self._quantizing():
            weight = _normal(4, 64)
            weight[1] = 0.0
            made = quantizer.quantize(Matrix("m", 4, 64), weight)
            if made is not None:
                assert not _dense(made)[1].any()

    def test_what_is_made_is_the_same_again_and_the_weight_as_before(self) -> None:
        for quantizer in self._quantizing():
            weight, matrix = _normal(32, 64), Matrix("m", 32, 64)
            first = quantizer.quantize(matrix, weight)
            assert torch.equal(weight, _normal(32, 64))
            second = quantizer.quantize(matrix, weight)
            assert (first is None) == (second is None)
            assert first is None or second is None or _equal(first, second)

    def test_a_row_does_not_depend_on_the_others(self) -> None:
        """Matrices are joined, and their rows reordered."""
        for quantizer in self._quantizing():
            weight = _normal(32, 64) * torch.logspace(-3, 3, 32).unsqueeze(-1)
            whole = quantizer.quantize(Matrix("m", 32, 64), weight)
            part = quantizer.quantize(Matrix("m", 8, 64), weight[8:16].clone())
            if whole is not None and part is not None:
                assert torch.equal(_dense(whole)[8:16], _dense(part))

    def test_numbers_that_are_not_finite_are_refused(self) -> None:
        for quantizer in self._quantizing():
            for value in ("inf", "-inf", "nan"):
                weight = _normal(8, 64)
                weight[3, 5] = float(value)
                with pytest.raises(ValueError, match=r"\w"):
                    quantizer.quantize(Matrix("m", 8, 64), weight)
