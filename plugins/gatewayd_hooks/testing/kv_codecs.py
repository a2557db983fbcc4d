"""Conformance tests of KV codecs, for any encoding."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from gatewayd_hooks.kv_codecs import KvCodecStrategy, PlainRecords
from gatewayd_hooks.testing.simulation.resources import engine_resources

_TOKENS, _HEADS, _DIM = 24, 3, 64
_DTYPES = (torch.float32, torch.bfloat16)


def _normal(seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(_TOKENS, _HEADS, _DIM, generator=generator)


def _outlier() -> torch.Tensor:
    values = _normal(1)
    values[:, :, 5] *= 100
    return values


INPUTS = {
    "normal": _normal(),
    "one number that stands out": _outlier(),
    "constant": torch.full((_TOKENS, _HEADS, _DIM), -2.5),
    "zeros": torch.zeros(_TOKENS, _HEADS, _DIM),
    "heads of very different size": _normal(2) * torch.tensor([1e-4, 1.0, 1e4])[:, None],
    "tiny": _normal(3) * 1e-30,
    "huge": _normal(4) * 1e30,
}


class KvCodecConformance:
    """Subclass it, build your strategy in ``make`` and return the allowed error from ``bound``."""

    def make(self) -> KvCodecStrategy:
        """Build the strategy; the tests open and close it, and make many."""
        raise NotImplementedError("return your strategy, built and not opened")

    def bound(self, values: torch.Tensor) -> torch.Tensor:
        """Return the allowed error of encoding and decoding.

        Args:
            values: float32, shape ``[n, heads, head_dim]``.

        Returns:
            Of a shape that broadcasts to theirs; by default an eighth of the largest in its head.
        """
        return values.abs().amax(-1, keepdim=True) / 8

    @contextmanager
    def opened(self) -> Iterator[KvCodecStrategy]:
        """Yield an opened codec."""
        strategy = self.make()
        try:
            strategy.open(engine_resources())
            yield strategy
        finally:
            strategy.close()

    @staticmethod
    def encoded(codec: KvCodecStrategy, values: torch.Tensor, before: int = 0) -> torch.Tensor:
        """Return encoded records, written over bytes of one value."""
        record = codec.record_bytes(values.shape[-1], values.dtype)
        out = torch.full((*values.shape[:-1], record), before, dtype=torch.uint8)
        codec.encode(values, out)
        return out

    @staticmethod
    def decoded(
        codec: KvCodecStrategy, records: torch.Tensor, dtype: torch.dtype = torch.float32
    ) -> torch.Tensor:
        """Return decoded numbers, written over NaN."""
        out = torch.full((*records.shape[:-1], _DIM), torch.nan, dtype=dtype)
        codec.decode(records, out)
        return out

    def test_closing_it_unopened_is_harmless(self) -> None:
        self.make().close()

    def test_the_size_of_a_record_is_known_before_it_is_opened(self) -> None:
        for dtype in _DTYPES:
            asked = self.make().record_bytes(_DIM, dtype)
            assert asked > 0
            with self.opened() as codec:
                assert codec.record_bytes(_DIM, dtype) == asked

    def test_a_record_of_zero_bytes_is_zeros(self) -> None:
        for dtype in _DTYPES:
            with self.opened() as codec:
                record = codec.record_bytes(_DIM, dtype)
                blank = torch.zeros(_TOKENS, _HEADS, record, dtype=torch.uint8)
                assert not self.decoded(codec, blank, dtype).any()

    def test_numbers_come_back_within_the_bound(self) -> None:
        for dtype in _DTYPES:
            for name, numbers in INPUTS.items():
                given = numbers.to(dtype)
                with self.opened() as codec:
                    found = self.decoded(codec, self.encoded(codec, given), dtype).float()
                assert bool(found.isfinite().all()), f"{name}: finite numbers became non-finite"
                values = given.float()
                bound = self.bound(values)
                if dtype is torch.bfloat16:  # for its own rounding error
                    bound = bound + values.abs() * 2.0**-7
                assert bool(((found - values).abs() <= bound).all()), f"{name}: beyond the bound"

    def test_very_large_numbers_stay_finite(self) -> None:
        for dtype in _DTYPES:
            most = 2.0**127
            for values in (_normal(9).sign() * most, torch.full((1, 1, _DIM), most)):
                with self.opened() as codec:
                    given = values.to(dtype)
                    found = self.decoded(codec, self.encoded(codec, given), dtype)
                assert bool(found.isfinite().all()), "finite numbers became non-finite"

    def test_equal_numbers_give_equal_bytes_in_any_buffer(self) -> None:
        for values in INPUTS.values():
            with self.opened() as codec:
                once = self.encoded(codec, values)
                assert torch.equal(self.encoded(codec, values, 0xFF), once), "unwritten bytes"
                assert torch.equal(self.decoded(codec, once), self.decoded(codec, once))
            with self.opened() as another:
                assert torch.equal(self.encoded(another, values), once)

    def test_a_record_depends_only_on_its_own_token_and_head(self) -> None:
        values = torch.cat([INPUTS["normal"], INPUTS["one number that stands out"], INPUTS["huge"]])
        order = torch.randperm(len(values), generator=torch.Generator().manual_seed(5))
        heads = torch.tensor([2, 0, 1])
        with self.opened() as codec:
            records = self.encoded(codec, values)
            assert torch.equal(self.encoded(codec, values[order]), records[order])
            assert torch.equal(self.encoded(codec, values[:, heads]), records[:, heads])
            numbers = self.decoded(codec, records)
            for i in (0, 7, len(values) - 1):
                assert torch.equal(self.encoded(codec, values[i : i + 1]), records[i : i + 1])
                assert torch.equal(self.decoded(codec, records[i, 1]), numbers[i, 1])

    def test_inputs_are_not_modified(self) -> None:
        values = _normal(6)
        before = values.clone()
        with self.opened() as codec:
            records = self.encoded(codec, values)
            assert torch.equal(values, before)
            kept = records.clone()
            self.decoded(codec, records)
            assert torch.equal(records, kept)

    def test_gaps_between_records_are_not_written(self) -> None:
        values = _normal(7)
        wide = torch.full((_TOKENS, 2 * _HEADS, _DIM), 3.0)
        wide[:, _HEADS:] = values
        with self.opened() as codec:
            records = self.encoded(codec, values)
            size = records.shape[-1]
            # Records at even addresses within wider rows, as in pages of a pool.
            room = torch.full((_TOKENS, _HEADS, size + 6), 9, dtype=torch.uint8)
            codec.encode(wide[:, _HEADS:], room[..., 2 : 2 + size])
            assert torch.equal(room[..., 2 : 2 + size], records)
            assert bool((room[..., :2] == 9).all())
            assert bool((room[..., 2 + size :] == 9).all())
            numbers = self.decoded(codec, records)
            out = torch.full((_TOKENS, _HEADS, _DIM + 2), 8.0)
            codec.decode(room[..., 2 : 2 + size], out[..., 1:-1])
            assert torch.equal(out[..., 1:-1], numbers)
            assert bool((out[..., 0] == 8).all())
            assert bool((out[..., -1] == 8).all())

    def test_records_may_have_any_shape_even_an_empty_one(self) -> None:
        values = _normal(8)
        with self.opened() as codec:
            records = self.encoded(codec, values)
            numbers = self.decoded(codec, records)
            stacked = self.decoded(codec, torch.unflatten(records, 0, (2, 3, -1)))
            assert torch.equal(stacked.flatten(0, 2), numbers)
            assert not len(self.encoded(codec, values[:0]))
            assert not len(self.decoded(codec, records[:0]))

    def test_records_declared_as_plain_numbers_are_plain_numbers(self) -> None:
        for dtype in _DTYPES:
            with self.opened() as codec:
                element = codec.element(dtype) if isinstance(codec, PlainRecords) else None
                if element is None:
                    continue
                assert element.is_floating_point, f"{element} is not a float type"
                assert element.itemsize == 1, f"{element} does not have 8 bits"
                records = self.encoded(codec, _normal(10).to(dtype))
                assert records.shape[-1] == _DIM, "a record is larger than its numbers"
                meant = records.view(element).to(dtype)
                assert torch.equal(self.decoded(codec, records, dtype), meant)
                # GPU kernels write such numbers themselves, saturating.
                most = torch.finfo(element).max
                large = torch.full((1, 1, _DIM), 1e6, dtype=dtype)
                found = self.decoded(codec, self.encoded(codec, large), dtype)
                assert bool((found == most).all()), "numbers beyond the largest must saturate"
