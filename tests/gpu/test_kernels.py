"""The Triton kernels on a GPU, at a model's sizes, and in CUDA graphs.

Small and odd sizes are tested in ``tests/engine/kernels``, on the GPU too if there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch

from gatewayd_engine.kernels.attention.splits import num_multiprocessors, num_splits
from gatewayd_engine.kernels.base import Kernels
from gatewayd_engine.kernels.quantized.base import Activation
from gatewayd_engine.kernels.select import choose
from tests.engine.kernels import checks, verifying
from tests.engine.kernels.decoding import Case, Chunks, Lines, close

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
]

CUDA = torch.device("cuda")
HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 4096, 14336, 32, 8, 128, 128_256
"""Llama 3.1 8B."""

Outputs = tuple[torch.Tensor, ...]
Call = Callable[[Kernels], Outputs]


@pytest.fixture(params=[False, True], ids=["in turn", "early"])
def kernels(request: pytest.FixtureRequest) -> Kernels:
    """Kernels that are launched one after the other, and such that begin early."""
    made = choose(CUDA)
    if request.param and not made.can_launch_early:
        pytest.skip("launches are never early on this GPU")
    made.launches_early = request.param
    return made


@pytest.fixture(params=[torch.bfloat16, torch.float32], ids=["bfloat16", "float32"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    kind: torch.dtype = request.param
    return kind


@pytest.fixture(params=[1, 7, 64, 256])
def n(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("size", [HIDDEN, 3584, 16384])
def test_rows_are_normed(
    kernels: Kernels, dtype: torch.dtype, n: int, size: int, adds: bool
) -> None:
    checks.add_rms_norm(kernels, CUDA, dtype, n, size, adds)


def test_heads_are_normed(kernels: Kernels, dtype: torch.dtype, n: int) -> None:
    checks.norm_heads(kernels, CUDA, dtype, n, HEADS + KV_HEADS, HEAD_DIM)


@pytest.mark.parametrize("element", [None, torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("window", [0, 128])
def test_lines_attend_to_their_pages(
    kernels: Kernels, dtype: torch.dtype, n: int, window: int, element: torch.dtype | None
) -> None:
    splits = num_splits(n * KV_HEADS, 1000, num_multiprocessors(CUDA))
    case = Case(
        tuple(i * 37 % 1000 for i in range(n)),
        num_heads=HEADS,
        kv_heads=KV_HEADS,
        dim=HEAD_DIM,
        page_size=16,
        window=window,
        splits=splits,
        dtype=dtype,
        element=element,
    )
    lines = Lines(case, CUDA)
    close(lines.attended(kernels), lines.attended(checks.TWIN))
    first, again = (lines.attended(kernels) for _ in range(2))
    assert torch.equal(first, again)


@pytest.mark.parametrize("parents", [None, tuple((i - 1) // 2 for i in range(16))])
def test_drafts_attend_to_their_pages(
    kernels: Kernels, dtype: torch.dtype, parents: tuple[int, ...] | None
) -> None:
    case = Case(
        (0, 16, 1000),
        (16, 7, 2),
        width=16,
        parents=parents,
        num_heads=HEADS,
        kv_heads=KV_HEADS,
        dim=HEAD_DIM,
        page_size=16,
        has_sinks=True,
        splits=8,
        dtype=dtype,
    )
    lines = Lines(case, CUDA)
    close(lines.attended(kernels), lines.attended(checks.TWIN))


@pytest.mark.parametrize("num_heads", [16, 128])
@pytest.mark.parametrize("element", [None, torch.float8_e4m3fn])
def test_lines_attend_to_latents(
    kernels: Kernels, dtype: torch.dtype, num_heads: int, element: torch.dtype | None
) -> None:
    """Records of DeepSeek's size, in a decode step, with drafts in a row, and of prompts."""
    case = Case(
        (0, 16, 700),
        num_heads=num_heads,
        kv_heads=1,
        dim=576,
        value_dim=512,
        page_size=64,
        splits=4,
        dtype=dtype,
        element=element,
    )
    for each in (case, replace(case, width=5, counts=(5, 2, 1))):
        lines = Lines(each, CUDA)
        close(lines.attended(kernels), lines.attended(checks.TWIN))
    chunks = Chunks(replace(case, width=70, counts=(1, 70, 33), splits=1), 1)
    close(chunks.attended(kernels, CUDA), chunks.attended(checks.TWIN, CUDA))


def test_records_of_latents_are_appended(kernels: Kernels, dtype: torch.dtype, n: int) -> None:
    checks.rope_append(kernels, CUDA, dtype, n, 128, 1, 576, 64, 64, first=512)


def test_answers_are_scaled_by_sinks(kernels: Kernels, dtype: torch.dtype, n: int) -> None:
    checks.scale_by_sinks(kernels, CUDA, dtype, n, 64, 64)


@pytest.mark.parametrize("act", ["silu", "gelu", "gelu_tanh"])
def test_gates_gate(kernels: Kernels, dtype: torch.dtype, n: int, act: Activation) -> None:
    checks.gated(kernels, CUDA, dtype, n, INTERMEDIATE, act)


@pytest.mark.parametrize(("dim", "rotary_dim"), [(HEAD_DIM, HEAD_DIM), (96, 72), (256, 256)])
def test_queries_are_rotated_and_keys_appended(
    kernels: Kernels, dtype: torch.dtype, n: int, dim: int, rotary_dim: int
) -> None:
    checks.rope_append(kernels, CUDA, dtype, n, HEADS, KV_HEADS, dim, rotary_dim)


def test_inputs_are_gathered(kernels: Kernels, n: int) -> None:
    checks.gather(kernels, CUDA, [1] * n, [i * 97 % 8000 for i in range(n)])
    checks.gather(kernels, CUDA, [1] * n + [2000, 17], [3] * n + [0, 130_000])


def test_tokens_are_drawn(kernels: Kernels, dtype: torch.dtype, n: int) -> None:
    checks.sample(kernels, CUDA, dtype, n, VOCAB)


@pytest.mark.parametrize("num_top", [0, 20])
def test_logprobs_are_reported(kernels: Kernels, dtype: torch.dtype, n: int, num_top: int) -> None:
    checks.logprobs(kernels, CUDA, dtype, n, VOCAB, num_top)


def test_tokens_are_forbidden(kernels: Kernels, dtype: torch.dtype, n: int) -> None:
    checks.mask(kernels, CUDA, dtype, n, VOCAB)


def test_tokens_are_penalised(kernels: Kernels, dtype: torch.dtype, n: int) -> None:
    checks.penalise(kernels, CUDA, dtype, n, VOCAB)


def calls(n: int) -> Iterator[tuple[str, torch.Tensor, Call]]:
    """Each kernel with inputs that stay where they are, and one of them that may change."""
    half = torch.bfloat16
    ints = torch.arange(n, device=CUDA)
    rows = ints.int()

    x = checks.random(n, HIDDEN, dtype=half, device=CUDA)
    delta = checks.random(n, HIDDEN, dtype=half, device=CUDA)
    scale = torch.rand(HIDDEN, device=CUDA)
    yield "add_rms_norm", x, lambda k: (k.add_rms_norm(x.clone(), delta, scale, 1e-5),)

    qkv = checks.random(n, HEADS + 2 * KV_HEADS, HEAD_DIM, dtype=half, device=CUDA)
    head_scale = torch.rand(HEADS + KV_HEADS, HEAD_DIM, device=CUDA)

    def norm_heads(k: Kernels) -> Outputs:
        normed = qkv.clone()
        k.norm_heads(normed[:, : HEADS + KV_HEADS], head_scale, 1e-5)
        return (normed,)

    yield "norm_heads", qkv, norm_heads

    gate_up = checks.random(n, 2 * INTERMEDIATE, dtype=half, device=CUDA)
    yield "gated", gate_up, lambda k: (k.gated(gate_up, "silu"),)

    table = torch.rand(n, HEAD_DIM, device=CUDA)
    pool = checks.random(n // 16 + 1, 4, 2, 16, KV_HEADS, HEAD_DIM, dtype=half, device=CUDA)

    def rope_append(k: Kernels) -> Outputs:
        heads, pages = qkv.clone(), pool.clone()
        k.rope_append(heads, table, ints, ints, pages, 2, HEADS)
        return heads, pages

    yield "rope_append", qkv, rope_append

    indptr = torch.arange(n + 1, dtype=torch.int32, device=CUDA)
    last = torch.randint(0, VOCAB, (n,), device=CUDA).int()
    block_table = torch.randint(0, 999, (n, 512), device=CUDA).int()
    given = torch.full((n,), -1, device=CUDA).int()
    starts = rows % 16

    def gather(k: Kernels) -> Outputs:
        ids, positions, write = torch.empty(3, n, dtype=torch.int64, device=CUDA)
        pages = torch.empty(n, dtype=torch.int32, device=CUDA)
        k.gather(
            rows, indptr, indptr, starts, given, last, block_table, 16, 1, ids, positions, write,
            pages,
        )  # fmt: skip
        return ids, positions, write, pages

    yield "gather", last, gather

    logits = checks.random(n, VOCAB, dtype=half, device=CUDA, scale=3.0)
    columns = checks.mixed_columns(CUDA, n)
    yield "sample", logits, lambda k: k.sample(logits, rows, ints, columns)
    yield "logprobs", logits, lambda k: k.logprobs(logits, rows, 20)

    words = torch.randint(-(1 << 31), 1 << 31, (n, VOCAB // 32), device=CUDA).int()

    def mask(k: Kernels) -> Outputs:
        masked = logits.clone()
        k.mask(masked, words, ints)
        return (masked,)

    yield "mask", words, mask

    penalties = checks.penalty_columns(CUDA, n, VOCAB)

    def penalise(k: Kernels) -> Outputs:
        penalised = logits.clone()
        k.penalise(penalised, ints, ints, penalties)
        return (penalised,)

    yield "penalise", penalties.counts, penalise


@pytest.mark.parametrize("n", [1, 64])
def test_a_captured_kernel_computes_from_what_its_inputs_hold_now(kernels: Kernels, n: int) -> None:
    for name, changing, call in calls(n):
        call(kernels)  # compiles
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outputs = call(kernels)
        graph.replay()
        before = [output.clone() for output in outputs]
        changing.copy_(changing.flatten().roll(1).view_as(changing) + 1)
        graph.replay()
        for output, expected in zip(outputs, call(kernels), strict=True):
            assert torch.equal(output, expected), name
        assert any(not torch.equal(*pair) for pair in zip(before, outputs, strict=True)), name


@pytest.mark.parametrize("most", [5, 60])
def test_drafts_are_accepted_and_kept(kernels: Kernels, most: int) -> None:
    for seed in range(20):
        verifying.accept(kernels, CUDA, seed, most)
    for dtype in (torch.bfloat16, torch.float8_e4m3fn):
        verifying.compact_path(kernels, CUDA, dtype, HEAD_DIM)
    verifying.slots(kernels, CUDA, [1, 4, 2, 3], [0, 3, 9, 5000], 4)
