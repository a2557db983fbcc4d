"""Conformance tests of quantizers, for any format."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from gatewayd_hooks.multiplying import Multiplies
from gatewayd_hooks.quantization import (
    Announcement,
    Calibrates,
    Matrix,
    Prunes,
    QuantizerResources,
    QuantizerStrategy,
    Quantizes,
    Reads,
    Scheme,
    SparseWeight,
    StaticWeight,
    Stored,
)
from gatewayd_hooks.testing import multiplying
from gatewayd_hooks.testing.weights.few_bits import (
    EIGHT_BITS,
    FLOAT_ERROR,
    FLOATS,
    INTEGERS,
    LEAST_FLOAT,
    SHAPES,
    STORED,
    check,
    dense,
    equal,
    normal,
    random,
    spread,
)
from gatewayd_hooks.testing.weights.quantized_writing import (
    Writer,
    check_announcement,
    check_pruned,
    check_read_back,
    fit_lost,
    nearest_lost,
    site,
    writer_of,
)


class QuantizerConformance:
    """Subclass it and build your quantizer in ``make``.

    If it reads checkpoints, also return sample configurations from ``announced`` and ``damages``.
    """

    def make(self) -> QuantizerStrategy:
        """Build the quantizer; the tests open and close it."""
        raise NotImplementedError("return your quantizer, built and not opened")

    def announced(self) -> Mapping[str, Any]:
        """Return the ``quantization_config`` of a checkpoint of the format."""
        pytest.fail("it reads checkpoints: return a sample configuration from announced()")

    def damages(self) -> Sequence[tuple[Mapping[str, Any], str]]:
        """Return fields that make a configuration invalid, and a word of each refusal."""
        pytest.fail("it reads checkpoints: return invalid fields from damages()")

    def sample(
        self, forms: Mapping[str, Stored], generator: torch.Generator
    ) -> dict[str, torch.Tensor]:
        """Return valid tensors of one matrix, as in a file; random bits, if all are valid."""
        return {suffix: random(stored, generator) for suffix, stored in forms.items()}

    @contextmanager
    def opened(self) -> Iterator[QuantizerStrategy]:
        """Yield an opened quantizer."""
        quantizer = self.make()
        try:
            quantizer.open(QuantizerResources(folder="", device="cpu"))
            yield quantizer
        finally:
            quantizer.close()

    def _schemes(self) -> Iterator[Scheme]:
        """Yield the scheme of a checkpoint; nothing if it does not read any."""
        with self.opened() as quantizer:
            if isinstance(quantizer, Reads):
                yield quantizer.scheme(Announcement(self.announced(), "here"))

    def _quantizing(self) -> Iterator[Quantizes]:
        """Yield the quantizer; nothing if it does not quantize."""
        with self.opened() as quantizer:
            if isinstance(quantizer, Quantizes):
                yield quantizer

    def _writing(self) -> Iterator[Writer]:
        """Yield its writer; nothing if it does not write checkpoints."""
        with self.opened() as quantizer:
            writer = writer_of(quantizer)
            if writer is not None:
                yield writer

    def _fitting(self) -> Iterator[tuple[Writer, Calibrates]]:
        """Yield its writer and itself; nothing if it does not calibrate."""
        for writer in self._writing():
            if isinstance(writer.strategy, Calibrates):
                yield writer, writer.strategy

    def _pruning(self) -> Iterator[tuple[Quantizes, Prunes]]:
        """Yield the quantizer twice, by its roles; nothing if it does not prune."""
        for quantizer in self._quantizing():
            if isinstance(quantizer, Prunes):
                yield quantizer, quantizer

    def _multiplying(self) -> Iterator[multiplying.Taken]:
        """Yield a product of each sample that it takes over; nothing if it does not multiply."""
        with self.opened() as quantizer:
            if isinstance(quantizer, Multiplies):
                yield from multiplying.taken(quantizer)

    def _tensors(self, scheme: Scheme, matrix: Matrix) -> dict[str, torch.Tensor]:
        forms = scheme.stored(matrix)
        assert forms, "stored() must name the tensors of a quantized matrix"
        first = {suffix: allowed[0] for suffix, allowed in forms.items()}
        return self.sample(first, torch.Generator().manual_seed(5))

    def test_closing_it_unopened_is_harmless(self) -> None:
        self.make().close()

    def test_it_reads_checkpoints_quantizes_or_multiplies(self) -> None:
        with self.opened() as quantizer:
            assert isinstance(quantizer, Reads | Quantizes | Multiplies)

    def test_an_invalid_announcement_is_refused_by_its_field(self) -> None:
        with self.opened() as quantizer:
            if not isinstance(quantizer, Reads):
                return
            for changes, word in self.damages():
                values = {**self.announced(), **changes}
                with pytest.raises(ValueError, match=rf"^here.*{re.escape(word)}"):
                    quantizer.scheme(Announcement(values, "here"))

    def test_required_and_optional_tensors_are_distinct(self) -> None:
        for scheme in self._schemes():
            for matrix in STORED:
                needed, rest = scheme.stored(matrix), scheme.optional(matrix)
                assert needed
                assert not needed.keys() & rest.keys()
                for forms in (*needed.values(), *rest.values()):
                    assert forms
                    assert all(form.dtype in {**FLOATS, **INTEGERS} for form in forms)

    def test_stored_tensors_become_a_weight_of_the_matrix(self) -> None:
        for scheme in self._schemes():
            for matrix in STORED:
                tensors = self._tensors(scheme, matrix)
                before = {suffix: tensor.clone() for suffix, tensor in tensors.items()}
                weight = scheme.weight(matrix, tensors.__getitem__)
                check(weight, matrix)
                assert equal(weight, scheme.weight(matrix, before.__getitem__))

    def test_scales_that_are_not_finite_are_refused(self) -> None:
        for scheme in self._schemes():
            tensors = self._tensors(scheme, STORED[0])
            wide = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
            for suffix, tensor in tensors.items():
                if tensor.dtype not in wide:
                    continue
                broken = tensor.clone()
                broken.view(-1)[-1] = float("inf")
                changed = {**tensors, suffix: broken}
                with pytest.raises(ValueError, match=r"\w"):
                    scheme.weight(STORED[0], changed.__getitem__)

    def test_every_number_is_rounded_to_the_nearest(self) -> None:
        """Integers by at most half a step of their group; floats by a sixteenth of their value.

        Nonzeros of 2:4 sparse weights are not rounded.
        """
        for quantizer in self._quantizing():
            for shape in SHAPES:
                for scale in (1.0, 1e-20, 1e20):
                    weight, matrix = normal(*shape, scale), Matrix("m", *shape)
                    made = quantizer.quantize(matrix, weight)
                    if made is None:
                        continue
                    check(made, matrix)
                    error = (dense(made) - weight).abs()
                    made = made.weight if isinstance(made, StaticWeight) else made
                    if isinstance(made, SparseWeight):
                        assert not error[made.values != 0].any()
                    elif isinstance(made, torch.Tensor):
                        least = weight.abs().amax(1, keepdim=True) * LEAST_FLOAT
                        assert (error <= torch.maximum(weight.abs() * FLOAT_ERROR, least)).all()
                    elif made.codes.dtype in EIGHT_BITS:
                        step = spread(made, made.scales).abs()
                        # Half a step, and some rounding.
                        assert (error <= 0.501 * step).all()
                    else:
                        least = spread(made, made.scales).abs() * 2.0**-6
                        assert (error <= torch.maximum(weight.abs() * FLOAT_ERROR, least)).all()

    def test_rows_of_zeros_stay_zeros(self) -> None:
        for quantizer in self._quantizing():
            weight = normal(4, 64)
            weight[1] = 0.0
            made = quantizer.quantize(Matrix("m", 4, 64), weight)
            if made is not None:
                assert not dense(made)[1].any()

    def test_quantization_is_deterministic_and_does_not_modify_the_weight(self) -> None:
        for quantizer in self._quantizing():
            weight, matrix = normal(32, 64), Matrix("m", 32, 64)
            first = quantizer.quantize(matrix, weight)
            assert torch.equal(weight, normal(32, 64))
            second = quantizer.quantize(matrix, weight)
            assert (first is None) == (second is None)
            assert first is None or second is None or equal(first, second)

    def test_a_row_does_not_depend_on_other_rows(self) -> None:
        """Matrices are merged, and their rows reordered."""
        for quantizer in self._quantizing():
            weight = normal(32, 64) * torch.logspace(-3, 3, 32).unsqueeze(-1)
            whole = quantizer.quantize(Matrix("m", 32, 64), weight)
            part = quantizer.quantize(Matrix("m", 8, 64), weight[8:16].clone())
            if whole is not None and part is not None:
                assert torch.equal(dense(whole)[8:16], dense(part))

    def test_numbers_that_are_not_finite_are_refused(self) -> None:
        for quantizer in self._quantizing():
            for value in ("inf", "-inf", "nan"):
                weight = normal(8, 64)
                weight[3, 5] = float(value)
                with pytest.raises(ValueError, match=r"\w"):
                    quantizer.quantize(Matrix("m", 8, 64), weight)

    def test_the_announcement_distinguishes_packed_from_plain_weights(self) -> None:
        with self.opened() as quantizer:
            check_announcement(quantizer)

    def test_written_tensors_can_be_read_back(self) -> None:
        for writer in self._writing():
            for matrix in writer.matrices:
                for scale in (1.0, 1e-6, 1e4, 0.0):
                    weight = normal(matrix.rows, matrix.columns, scale)
                    before = weight.clone()
                    check_read_back(writer, matrix, writer.strategy.nearest(matrix, weight))
                    assert torch.equal(weight, before)

    def test_weights_that_are_not_finite_are_not_written(self) -> None:
        for writer in self._writing():
            matrix = writer.matrices[0]
            for value in ("inf", "-inf", "nan"):
                weight = normal(matrix.rows, matrix.columns)
                weight[3, 5] = float(value)
                with pytest.raises(ValueError, match=r"\w"):
                    writer.strategy.nearest(matrix, weight)

    def test_a_fit_is_better_than_rounding_and_can_be_read_back(self) -> None:
        """Measured on the outputs; inputs are divided only where they may be."""
        for writer, strategy in self._fitting():
            # With and without columns whose inputs are always 0, whose Gram matrix is singular.
            for is_foldable, spare in ((False, 9), (True, 0)):
                one = site(is_foldable=is_foldable, spare=spare)
                fit = strategy.fit(one)
                assert fit_lost(one, fit) < nearest_lost(writer, one)
                assert is_foldable or fit.factors is None
                for matrix, weight in zip(one.matrices, fit.weights, strict=True):
                    check_read_back(writer, matrix, weight)

    def test_a_fit_is_deterministic_and_does_not_modify_its_input(self) -> None:
        for _, strategy in self._fitting():
            one, other = site(), site()
            first, second = strategy.fit(one), strategy.fit(one)
            assert all(map(equal, first.weights, second.weights))
            for before, after in ((other.weights, one.weights), ((other.gram,), (one.gram,))):
                assert all(map(torch.equal, before, after))
            assert torch.equal(one.inputs, other.inputs)

    def test_pruning_by_inputs_loses_less_and_is_deterministic(self) -> None:
        for quantizer, strategy in self._pruning():
            check_pruned(quantizer, strategy)

    def test_products_match_those_of_the_dequantized_weight(self) -> None:
        """Into new and given tensors, with strided inputs, with none, without modifying them."""
        for one in self._multiplying():
            multiplying.check_products(one)
            multiplying.check_kept(one)

    def test_products_are_deterministic_and_batch_invariant_if_declared(self) -> None:
        for one in self._multiplying():
            multiplying.check_again(one)

    def test_weights_are_not_modified(self) -> None:
        with self.opened() as quantizer:
            if isinstance(quantizer, Multiplies):
                multiplying.check_weights_are_left(quantizer)
