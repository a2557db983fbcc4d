"""Kernels: two implementations compared at any size on any device."""

from __future__ import annotations

import torch

from gatewayd_engine.kernels.base import Kernels, SamplingColumns
from gatewayd_engine.kernels.quantized.base import Activation, QuantizedRows
from gatewayd_engine.kernels.quantized.packing import PackedWeight, pack
from gatewayd_engine.kernels.quantized.scratch import DequantizeScratch
from gatewayd_engine.kernels.torch_kernels import TorchKernels
from gatewayd_engine.model.weights import to_device
from gatewayd_hooks.quantization import GroupedWeight
from gatewayd_hooks.resources import PenaltyColumns
from tests.engine.kernels.near_ties import Filters, may_differ
from tests.engine.kernels.weights import grouped

TWIN = TorchKernels()


def random(
    *shape: int, dtype: torch.dtype, device: torch.device, scale: float = 1.0
) -> torch.Tensor:
    """Normal numbers, the same for equal shapes."""
    generator = torch.Generator().manual_seed(sum(shape))
    return (torch.randn(shape, generator=generator) * scale).to(device, dtype)


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal but for rounding: float32 to its last bits, bfloat16 to two units of its last.

    Two, because a gate is rounded twice.
    """
    assert actual.dtype == expected.dtype
    rtol = 1e-5 if actual.dtype == torch.float32 else 2**-6
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=1e-5)


def add_rms_norm(
    kernels: Kernels, device: torch.device, dtype: torch.dtype, n: int, size: int, adds: bool
) -> None:
    # Rows of something wider, as a slice has them.
    x = random(n, size + 8, dtype=dtype, device=device, scale=3.0)[:, :size]
    delta = random(n, size, dtype=dtype, device=device) if adds else None
    weight = random(size, dtype=torch.float32, device=device)
    mine, other = x.clone(), x
    close(
        kernels.add_rms_norm(other, delta, weight, 1e-5),
        TWIN.add_rms_norm(mine, delta, weight, 1e-5),
    )
    assert torch.equal(other, mine)


def norm_mm(
    kernels: Kernels,
    device: torch.device,
    dtype: torch.dtype,
    n: int,
    columns: int,
    rows: int,
    act: Activation | None,
    has_bias: bool,
) -> None:
    x = random(n, columns, dtype=dtype, device=device, scale=3.0)
    scale = torch.rand(columns, device=device) + 0.5
    both = rows if act is None else 2 * rows
    weight = random(both, columns, dtype=dtype, device=device, scale=columns**-0.5)
    bias = random(both, dtype=dtype, device=device) if has_bias else None
    # A slice of something larger, as a layer's heads may be.
    mine, theirs = torch.full((2, n + 1, rows + 3), -7.0, device=device, dtype=dtype)
    before = x.clone()
    kernels.norm_mm(x, scale, 1e-5, weight, bias, act, mine[:n, :rows])
    TWIN.norm_mm(x, scale, 1e-5, weight, bias, act, theirs[:n, :rows])
    assert torch.equal(x, before)
    assert (mine[n:] == -7).all()
    assert (mine[:, rows:] == -7).all()
    # Sums in another order may round to the neighbour, before the gate and behind it; around zero
    # that is much of a number.
    rtol, atol = (1e-4, 1e-4) if dtype == torch.float32 else (2**-5, 2**-5)
    torch.testing.assert_close(mine, theirs, rtol=rtol, atol=atol)


def norm_heads(
    kernels: Kernels, device: torch.device, dtype: torch.dtype, n: int, heads: int, dim: int
) -> None:
    # The heads of queries and keys, values behind them.
    qkv = random(n, heads + 3, dim, dtype=dtype, device=device, scale=3.0)
    weight = random(heads, dim, dtype=torch.float32, device=device)
    mine = qkv.clone()
    TWIN.norm_heads(mine[:, :heads], weight, 1e-6)
    kernels.norm_heads(qkv[:, :heads], weight, 1e-6)
    close(qkv, mine)
    assert torch.equal(qkv[:, heads:], mine[:, heads:])


def gated(
    kernels: Kernels, device: torch.device, dtype: torch.dtype, n: int, size: int, act: Activation
) -> None:
    gate_up = random(n, 2 * size, dtype=dtype, device=device, scale=4.0)
    close(kernels.gated(gate_up, act), TWIN.gated(gate_up, act))


def add_rms_norm_quant(
    kernels: Kernels,
    device: torch.device,
    dtype: torch.dtype,
    n: int,
    size: int,
    adds: bool,
    codes: torch.dtype,
    group: int = 0,
) -> None:
    x = random(n, size + 16, dtype=dtype, device=device, scale=3.0)[:, :size]
    delta = random(n, size, dtype=dtype, device=device) if adds else None
    weight = random(size, dtype=torch.float32, device=device)
    mine, other = x.clone(), x
    same_codes(
        kernels.add_rms_norm_quant(other, delta, weight, 1e-5, codes, group),
        TWIN.add_rms_norm_quant(mine, delta, weight, 1e-5, codes, group),
    )
    assert torch.equal(other, mine)


def same_codes(actual: QuantizedRows, expected: QuantizedRows) -> None:
    """Equal but for numbers between two codes, which the last bit of their own decides."""
    n, kind = len(expected.scales), expected.codes.dtype
    assert actual.codes.dtype == kind
    assert actual.scales.shape == expected.scales.shape
    torch.testing.assert_close(actual.scales, expected.scales, rtol=2**-7, atol=0.0)
    width = expected.codes.shape[1] // expected.scales.shape[1]
    mine, other = (
        torch.unflatten(made.codes[:n].float(), 1, (-1, width)) * made.scales.unsqueeze(-1)
        for made in (actual, expected)
    )
    step = expected.scales.unsqueeze(-1) * (1.0 if kind == torch.int8 else 2**-9)
    apart = (mine - other).abs()
    assert (apart <= step * 1.01 + other.abs() * (0.0 if kind == torch.int8 else 2**-3)).all()
    assert (actual.codes[:n].float() != expected.codes[:n].float()).sum() <= mine.numel() // 20


def gated_quant(
    kernels: Kernels,
    device: torch.device,
    dtype: torch.dtype,
    n: int,
    size: int,
    act: Activation,
    codes: torch.dtype,
    group: int = 0,
) -> None:
    gate_up = random(n, 2 * size, dtype=dtype, device=device, scale=4.0)
    made, expected = (which.gated_quant(gate_up, act, codes, group) for which in (kernels, TWIN))
    same_codes(made, expected)


def quantize(
    kernels: Kernels,
    device: torch.device,
    dtype: torch.dtype,
    n: int,
    size: int,
    codes: torch.dtype,
    group: int = 0,
) -> None:
    """Bit for bit: there is nothing before it that could differ."""
    x = random(n, size + 16, dtype=dtype, device=device, scale=3.0)[:, :size]
    actual, expected = (which.quantize(x, codes, group) for which in (kernels, TWIN))
    assert torch.equal(actual.scales, expected.scales)
    mine, other = (made.codes[:n].view(torch.uint8) for made in (actual, expected))
    assert torch.equal(mine, other)


def scaled(
    kernels: Kernels, device: torch.device, dtype: torch.dtype, n: int, size: int, has_bias: bool
) -> None:
    sums = torch.randint(-(1 << 22), 1 << 22, (n + 3, size), dtype=torch.int32, device=device)
    lines, rows = (random(k, dtype=torch.float32, device=device) for k in (n, size))
    bias = random(size, dtype=dtype, device=device, scale=1e4) if has_bias else None
    mine, other = torch.zeros(2, n, size + 8, dtype=dtype, device=device)
    TWIN.dequantize_sums(sums, lines.unsqueeze(1), rows, bias, mine[:, :size])
    kernels.dequantize_sums(sums, lines.unsqueeze(1), rows, bias, other[:, :size])
    close(other, mine)


def packed(kind: str, rows: int, columns: int, groups: int, device: torch.device) -> PackedWeight:
    weight = to_device(grouped(kind, rows, columns, groups), device)
    assert isinstance(weight, GroupedWeight)
    made = pack(weight)
    assert made is not None
    return made


def grouped_mm(
    kernels: Kernels,
    device: torch.device,
    dtype: torch.dtype,
    n: int,
    rows: int,
    columns: int,
    groups: int,
    kind: str,
    has_bias: bool = False,
) -> None:
    weight = packed(kind, rows, columns, groups, device)
    room = DequantizeScratch(device, dtype)
    room.reserve(weight)
    # Rows of something wider, and into something wider.
    x = random(n, columns + 16, dtype=dtype, device=device)[:, :columns]
    bias = random(rows, dtype=dtype, device=device) if has_bias else None
    mine, other = torch.zeros(2, n, rows + 16, dtype=dtype, device=device)
    TWIN.grouped_mm(x, weight, bias, room, mine[:, :rows])
    for _ in range(2):
        kernels.grouped_mm(x, weight, bias, room, other[:, :rows])
        assert torch.isfinite(other).all()
        scale = float(mine.float().abs().mean()) + 1e-9
        rtol = 1e-5 if dtype == torch.float32 else 2**-7
        torch.testing.assert_close(other, mine, rtol=rtol, atol=rtol * scale)
        assert not other[:, rows:].any()
        assert not room.arrived.any()


def expand(
    kernels: Kernels,
    device: torch.device,
    dtype: torch.dtype,
    rows: int,
    columns: int,
    groups: int,
    kind: str,
    first: int,
    count: int,
) -> None:
    weight = packed(kind, rows, columns, groups, device)
    mine, other = torch.zeros(2, columns, count + 16, dtype=dtype, device=device)
    TWIN.dequantize_rows(weight, first, mine[:, :count])
    kernels.dequantize_rows(weight, first, other[:, :count])
    # Devices multiply and add in one, with one rounding less.
    close(other, mine)


def rope_append(
    kernels: Kernels,
    device: torch.device,
    dtype: torch.dtype,
    n: int,
    num_heads: int,
    kv_heads: int,
    dim: int,
    rotary_dim: int,
    page_size: int = 16,
    element: torch.dtype | None = None,
    *,
    keeps_keys: bool = False,
    first: int = 0,
) -> None:
    """With ``first``, keys serve as values."""
    parts = 1 if first else 2
    heads = random(n, num_heads + parts * kv_heads, dim, dtype=dtype, device=device)
    angles = torch.outer(torch.arange(n + 40.0), 1.0 / 100 ** torch.rand(rotary_dim // 2))
    table = torch.stack((angles.cos(), angles.sin()), -1).flatten(1).to(device)
    positions = torch.randperm(n + 40)[:n].to(device)
    num_pages = n // page_size + 3
    write = torch.randperm(num_pages * page_size)[:n].to(device)
    pool = random(num_pages, 3, parts, page_size, kv_heads, dim, dtype=dtype, device=device)
    if element is not None:
        pool = pool.to(element)
        heads[0] *= 1e6  # beyond the largest of 8 bits
    mine, my_pool = heads.clone(), pool.clone()
    TWIN.rope_append(mine, table, positions, write, my_pool, 1, num_heads, keeps_keys, first)
    kernels.rope_append(heads, table, positions, write, pool, 1, num_heads, keeps_keys, first)
    close(heads, mine)
    if element is None:
        close(pool, my_pool)
    else:
        # A number between two may become either: a step is an eighth, or a fourth.
        assert pool.float().isfinite().all()
        apart = pool.view(torch.uint8) != my_pool.view(torch.uint8)
        assert apart.sum() <= apart.numel() // 100
        torch.testing.assert_close(pool.float(), my_pool.float(), rtol=0.26, atol=2**-9)
    kept = num_heads + (kv_heads if keeps_keys else 0)
    assert torch.equal(heads[:, kept:], mine[:, kept:])


def scale_by_sinks(
    kernels: Kernels, device: torch.device, dtype: torch.dtype, n: int, num_heads: int, dim: int
) -> None:
    out = random(n, num_heads, dim, dtype=dtype, device=device)
    lse = random(n, num_heads, dtype=torch.float32, device=device, scale=4.0)
    sinks = random(num_heads, dtype=torch.float32, device=device, scale=2.0)
    mine = out.clone()
    TWIN.scale_by_sinks(mine, lse, sinks)
    kernels.scale_by_sinks(out, lse, sinks)
    close(out, mine)


def gather(
    kernels: Kernels,
    device: torch.device,
    counts: list[int],
    starts: list[int],
    page_size: int = 16,
    dtype: torch.dtype = torch.int32,
) -> None:
    """Lines with so many tokens from such positions on."""
    lines = len(counts)
    lengths = [start + count for start, count in zip(starts, counts, strict=True)]
    pages = [-(-length // page_size) for length in lengths]
    most = max(pages) + 2

    def indptr(sizes: list[int]) -> torch.Tensor:
        return torch.tensor([0, *sizes]).cumsum(0).int().to(device)

    rows = torch.randperm(lines + 3)[:lines].int().to(device)
    given = torch.randint(-1, 3, (sum(counts),)).int().to(device)
    last_tokens = torch.randint(100, 200, (lines + 3,)).to(device, dtype)
    table = torch.randint(0, 1 << 20, (lines + 3, most)).int().to(device)

    def run(which: Kernels) -> list[torch.Tensor]:
        ids, positions, write = (torch.full((sum(counts) + 5,), -7, device=device) for _ in "123")
        flat = torch.full((sum(pages) + 5,), -7, dtype=torch.int32, device=device)
        which.gather(
            rows, indptr(counts), indptr(pages), torch.tensor(starts).int().to(device), given,
            last_tokens, table, page_size, max(counts), ids, positions, write, flat,
        )  # fmt: skip
        return [ids, positions, write, flat]

    for actual, expected in zip(run(kernels), run(TWIN), strict=True):
        assert torch.equal(actual, expected)


def columns(device: torch.device, rows: int, **given: list[float]) -> SamplingColumns:
    """Columns of neutral values but for those given."""

    def column(name: str, neutral: float, dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor(given.get(name, [neutral] * rows)).to(device, dtype)

    seeds = torch.randint(-(1 << 63), (1 << 63) - 1, (rows,)) if "seed" not in given else None
    return SamplingColumns(
        temperature=column("temperature", 1.0, torch.float32),
        top_k=column("top_k", 0, torch.int32),
        top_p=column("top_p", 1.0, torch.float32),
        min_p=column("min_p", 0.0, torch.float32),
        seed=column("seed", 0, torch.int64) if seeds is None else seeds.to(device),
    )


def mixed_columns(device: torch.device, rows: int) -> SamplingColumns:
    """Rows of every kind: greedy, open, filtered one way and all ways at once."""

    def cycle(values: list[float]) -> list[float]:
        return [values[i % len(values)] for i in range(rows)]

    return columns(
        device,
        rows,
        temperature=cycle([0.0, 1.0, 0.7, 1.3, 1.0, 0.9, 1.5]),
        top_k=cycle([0, 0, 40, 0, 0, 20, 1]),
        top_p=cycle([1.0, 1.0, 1.0, 0.9, 1.0, 0.8, 1.0]),
        min_p=cycle([0.0, 0.0, 0.0, 0.0, 0.05, 0.02, 0.0]),
    )


def sample(kernels: Kernels, device: torch.device, dtype: torch.dtype, n: int, vocab: int) -> None:
    logits = random(n, vocab, dtype=dtype, device=device, scale=3.0)
    table = mixed_columns(device, n + 2)
    rows = torch.randperm(n + 2)[:n].int().to(device)
    positions = torch.randint(0, 1 << 17, (n,)).to(device)
    before = logits.clone()
    # Of a larger tensor, as captured steps have it.
    chosen = torch.full((2, n + 3), -7, dtype=torch.int32, device=device)
    last, expected_last = torch.full((2, n + 2), -7, dtype=torch.int32, device=device)
    expected_chosen = chosen.clone()
    tokens, best = kernels.sample(logits, rows, positions, table, chosen[:, :n], last)
    expected, expected_best = TWIN.sample(
        logits, rows, positions, table, expected_chosen[:, :n], expected_last
    )
    for mine in (chosen, expected_chosen):
        assert (mine[:, n:] == -7).all()
    assert torch.equal(chosen[0, :n], tokens)
    assert torch.equal(chosen[1, :n].view(torch.float32), best)
    assert torch.equal(last[rows.long()], tokens)
    assert torch.equal(last == -7, expected_last == -7)
    alone, _ = kernels.sample(logits, rows, positions, table)
    assert torch.equal(alone, tokens)
    assert tokens.dtype == torch.int32
    assert torch.equal(best, expected_best)
    assert torch.equal(logits, before)
    # Two scores may be closer than rounding is fine, a token at a filter's edge kept or not.
    differing = (tokens != expected).nonzero().flatten().tolist()
    assert len(differing) <= max(1, n // 100)
    for line in differing:
        how = Filters(*(getattr(table, name)[rows[line]].item() for name in Filters._fields))
        pair = int(tokens[line]), int(expected[line])
        assert may_differ(logits[line], how, int(positions[line]), *pair), (line, how, pair)


def logprobs(
    kernels: Kernels, device: torch.device, dtype: torch.dtype, n: int, vocab: int, num_top: int
) -> None:
    logits = random(n, vocab, dtype=dtype, device=device, scale=4.0)
    tokens = torch.randint(0, vocab, (n,)).int().to(device)
    actual = kernels.logprobs(logits, tokens, num_top)
    expected = TWIN.logprobs(logits, tokens, num_top)
    for mine, theirs in zip(actual[:3], expected[:3], strict=True):
        assert mine.dtype == theirs.dtype
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)
    # Of equal logits either may come first.
    assert torch.equal(logits.gather(1, actual[3]), logits.gather(1, expected[3]))
    assert actual[3].dtype == torch.int64


def mask(kernels: Kernels, device: torch.device, dtype: torch.dtype, n: int, vocab: int) -> None:
    logits = random(n, vocab, dtype=dtype, device=device)
    lines = torch.randperm(n)[: max(1, n // 2)].to(device)
    words = torch.randint(-(1 << 31), 1 << 31, (len(lines), -(-vocab // 32))).int().to(device)
    mine = logits.clone()
    TWIN.mask(mine, words, lines)
    kernels.mask(logits, words, lines)
    assert torch.equal(logits, mine)


def penalty_columns(device: torch.device, rows: int, vocab: int) -> PenaltyColumns:
    """Of four rows, one has both kinds of penalties, one each of them, one none."""
    row = torch.arange(rows)
    return PenaltyColumns(
        seen=(torch.rand(rows, vocab) < 0.3).to(device),
        seen_line=torch.where(row % 4 < 2, rows - 1 - row, -1).to(device),
        counts=(torch.randint(0, 4, (rows, vocab)).int() * (torch.rand(rows, vocab) < 0.3)).to(
            device, torch.int32
        ),
        count_line=torch.where(row % 2 == 0, row, -1).to(device),
        repetition=(0.5 + torch.rand(rows)).to(device),
        frequency=torch.randn(rows).to(device),
        presence=torch.randn(rows).to(device),
    )


def penalise(
    kernels: Kernels, device: torch.device, dtype: torch.dtype, n: int, vocab: int
) -> None:
    logits = random(n, vocab, dtype=dtype, device=device, scale=3.0)
    table = penalty_columns(device, n + 2, vocab)
    lines = torch.randperm(n).to(device)
    rows = torch.randperm(n + 2)[:n].to(device)
    mine = logits.clone()
    TWIN.penalise(mine, lines, rows, table)
    kernels.penalise(logits, lines, rows, table)
    close(logits, mine)
