"""Attention with compacted prefixes: equals the definition over keys, biases and values."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gatewayd_engine.kv.codec import Codec
from gatewayd_engine.kv.compacted_prefix import NO_PAGE, CompactedPrefix
from gatewayd_engine.kv.key_biases import bias_pages, read_biases, write_front
from gatewayd_engine.kv.pool import KvPool
from gatewayd_engine.model.attention_shape import AttentionShape
from gatewayd_hooks.kv_compression import Compacted
from gatewayd_kv_int8.config import Int8CodecConfig
from gatewayd_kv_int8.strategy import Int8Codec
from tests.engine.attention.test_reference import MAX_LEN, PAGE, Twin

SHAPE = AttentionShape(2, 6, 2, 8, 0.3, None, (0, 0))


def int8(dim: int) -> Codec:
    strategy = Int8Codec(Int8CodecConfig())
    return Codec(strategy, strategy.record_bytes(dim, torch.float32), dim, torch.float32)


def random_front(shape: AttentionShape, kept: int) -> list[Compacted]:
    def numbers(*sizes: int) -> torch.Tensor:
        return torch.randn(shape.num_kv_heads, kept, *sizes)

    dim = shape.head_dim
    return [Compacted(numbers(dim), 2 * numbers(), numbers(dim)) for _ in range(shape.num_layers)]


class ShorterTwin(Twin):
    """Some of whose sequences have fronts."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.front: dict[int, CompactedPrefix] = {}
        self.found: dict[int, list[Compacted]] = {}

    def restart(self, row: int) -> None:
        super().restart(row)
        self.front.pop(row, None)
        if self.rows.fronts.pop(row, None) is not None:
            self.rows.block_table[row] = self.fresh_pages(len(self.rows.block_table[row]))

    def fresh_pages(self, count: int) -> list[int]:
        taken = {page for front in self.front.values() for page in front.bias}
        fresh = super().fresh_pages(count + len(taken))
        return [page for page in fresh if page not in taken][:count]

    def num_tokens(self, row: int) -> int:
        front = self.front.get(row)
        return super().num_tokens(row) + (0 if front is None else front.shift)

    def shorten(self, row: int, covered: int, kept: int) -> None:
        """Something stands for the first tokens of a row from now on."""
        found = random_front(self.shape, kept)
        fresh = self.fresh_pages(kept // PAGE + bias_pages(self.pool, kept))
        write_front(self.pool, fresh, kept, found)
        front = self.front[row] = CompactedPrefix(covered, kept, tuple(fresh[kept // PAGE :]))
        rest = self.rows.block_table[row, covered // PAGE :].tolist()
        absent = [NO_PAGE] * (covered // PAGE - len(fresh))
        self.rows.set_front(row, front, [*fresh, *absent, *rest])
        few = torch.stack([torch.cat((one.keys, one.values)).transpose(0, 1) for one in found])
        if self.codec is not None:
            few = self.codec.decode(self.codec.encode(few.flatten(0, 1))).view(few.shape)
        self.known[row] = torch.cat((few, self.known[row][:, covered:]), 1)
        self.found[row] = found

    def weigh(self, layer: int, scores: torch.Tensor, row: int) -> None:
        if row in self.front:
            bias = self.found[row][layer].bias
            group = self.shape.num_heads // self.shape.num_kv_heads
            scores[:, :, : bias.shape[1]] += bias.repeat_interleave(group, 0)[:, None]


def shrink_and_go_on(twin: ShorterTwin, num_steps: int) -> None:
    rng = twin.rng
    for row in range(6):
        twin.step({row: rng.choice([90, 150, 1, 33])})
    for _ in range(num_steps):
        for row in range(6):
            computed = twin.num_tokens(row)
            if computed > MAX_LEN - 20 or rng.random() < 0.03:
                twin.restart(row)
                twin.step({row: rng.choice([40, 130])})
            elif row not in twin.front and computed >= 40 and rng.random() < 0.2:
                covered = rng.randrange(32, computed + 1) // PAGE * PAGE
                twin.shorten(row, covered, PAGE * rng.randint(1, covered // PAGE - 6))
        some = rng.sample(range(6), rng.choice([6, 6, 6, 3]))
        twin.step({row: 1 if rng.random() < 0.9 else rng.choice([5, 17]) for row in some})


@pytest.mark.parametrize("copy_bytes", [0, 1 << 26, 300_000])
@pytest.mark.parametrize("has_codec", [False, True])
def test_fronts_are_attended_with_their_biases(copy_bytes: int, has_codec: bool) -> None:
    twin = ShorterTwin(SHAPE, copy_bytes, 5, int8(SHAPE.head_dim) if has_codec else None)
    shrink_and_go_on(twin, 20)
    assert twin.front


def test_steady_attention_has_biases_too() -> None:
    twin = ShorterTwin(SHAPE, 1 << 26, 7, is_steady=True)
    shrink_and_go_on(twin, 8)
    assert twin.front


def test_a_cap_comes_before_the_bias() -> None:
    shape = AttentionShape(2, 6, 2, 8, 0.3, 3.0, (0, 0))
    shrink_and_go_on(ShorterTwin(shape, 1 << 26, 6), 12)


@pytest.mark.parametrize("has_codec", [False, True])
@pytest.mark.parametrize("kept", [4, 32, 36, 100])
def test_pages_hold_biases_bit_for_bit(kept: int, has_codec: bool) -> None:
    shape = AttentionShape(3, 6, 2, 4, 0.3, None, (0, 0, 0))
    codec = int8(shape.head_dim) if has_codec else None
    pool = KvPool(shape, 128, PAGE, torch.float32, "cpu", codec)
    num_bias = bias_pages(pool, kept)
    # A page has as many bytes for a layer as its keys and values.
    each = 2 * PAGE * (6 if has_codec else 16) // 4
    assert num_bias == -(-kept // each)
    pages = list(range(40, 40 + kept // PAGE + num_bias))
    found = random_front(shape, kept)
    write_front(pool, pages, kept, found)
    front = CompactedPrefix(4 * kept, kept, tuple(pages[kept // PAGE :]))
    assert torch.equal(read_biases(pool, front), torch.stack([one.bias for one in found]))
    written = pool.data.flatten(1).ne(0).any(1).nonzero().flatten().tolist()
    assert written == pages
