"""FlashInfer's attention on a GPU, against the definition, and no step waits for the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

import pytest
import torch

from gatewayd_engine.attention.gpu_api import CapturingAttention, DeviceAttention
from gatewayd_engine.attention.paged import PagedAttention
from gatewayd_engine.attention.select import device_attention
from gatewayd_engine.attention.triton_decode import DecodeAttention, DecodeKernels
from gatewayd_engine.kernels.select import choose
from gatewayd_engine.model.attention_shape import AttentionShape
from tests.engine.attention.steps import Sequences, Static

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or find_spec("flashinfer") is None,
        reason="there is no GPU or no FlashInfer",
    ),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.timeout(900),  # kernels that nobody has compiled yet
]

LLAMA = AttentionShape(2, 32, 8, 128, 128**-0.5, None, (0, 0))
NANO = AttentionShape(2, 6, 2, 64, 64**-0.5, None, (0, 0))
LENGTHS = [1, 16, 17, 250, 400, 33, 31, 1000]


def filled(
    shape: AttentionShape, dtype: torch.dtype = torch.bfloat16, *, has_sinks: bool = False
) -> Sequences:
    sequences = Sequences(
        shape, page_size=16, max_len=1600, dtype=dtype, device="cuda", has_sinks=has_sinks
    )
    for row, length in enumerate(LENGTHS):
        sequences.fill(row, length)
    return sequences


def made(sequences: Sequences, shares_prefixes: bool = False) -> DeviceAttention:
    """What a GPU gets."""
    kernels = choose(torch.device("cuda"))
    return device_attention(
        *(sequences.shape, sequences.pool, sequences.append, kernels, 8, 1600, shares_prefixes),
        sinks=sequences.sinks,
    )


def own(sequences: Sequences) -> DecodeAttention:
    """What it gets without FlashInfer."""
    shape, pool, append = sequences.shape, sequences.pool, sequences.append
    sinks = sequences.sinks
    kernels = DecodeKernels(shape, pool, append, choose(torch.device("cuda")), 8, 1600, sinks)
    return DecodeAttention(kernels, PagedAttention(shape, pool, append, kernels, sinks))


@contextmanager
def without_waiting() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def check(
    sequences: Sequences, attention: DeviceAttention, counts: dict[int, int], shared: int = 0
) -> None:
    """Compute a step twice, the second time without waiting, and compare each layer."""
    inputs = sequences.inputs(counts, shared_pages=shared)
    heads = torch.stack([sequences.heads(len(inputs.ids)) for _ in sequences.shape.windows])
    wanted = sequences.compute(counts, inputs, heads)
    warm = attention.eager(inputs)
    for layer in range(len(wanted)):
        warm(layer, heads[layer].clone())
    torch.cuda.synchronize()
    with without_waiting():
        attend = attention.eager(inputs)
        got = [attend(layer, heads[layer]).clone() for layer in range(len(wanted))]
    for one, want in zip(got, wanted, strict=True):
        close(one, want)


def close(got: torch.Tensor, wanted: torch.Tensor) -> None:
    """Compare with what bfloat16 can tell apart."""
    error = (got.double() - wanted).norm() / wanted.norm()
    assert float(error) < 1e-2


@pytest.mark.parametrize("shape", [LLAMA, NANO], ids=["llama", "nano"])
def test_steps_give_what_the_definition_gives(shape: AttentionShape) -> None:
    sequences = filled(shape)
    attention = made(sequences)
    assert isinstance(attention, DecodeAttention)
    assert type(attention._other).__name__ == "FlashAttention"
    check(sequences, attention, dict.fromkeys(range(8), 1))
    check(sequences, attention, {3: 200, 0: 17, 7: 5})
    check(sequences, attention, {1: 1, 2: 1, 6: 1, 0: 90, 4: 3})


@pytest.mark.parametrize("make", [made, own])
def test_sinks_take_their_part(make: Callable[[Sequences], DeviceAttention]) -> None:
    """Of the heads of gpt-oss, whose layers alternate; without FlashInfer prompts have a kernel."""
    shape = AttentionShape(2, 64, 8, 64, 64**-0.5, None, (128, 0))
    sequences = filled(shape, has_sinks=True)
    attention = make(sequences)
    for counts in ({0: 1, 3: 1, 7: 1}, {0: 1, 2: 300, 5: 17}):
        check(sequences, attention, counts)


@pytest.mark.parametrize("has_sinks", [False, True])
@pytest.mark.parametrize("make", [made, own])
def test_layers_attend_within_chunks(
    make: Callable[[Sequences], DeviceAttention], has_sinks: bool
) -> None:
    """Of the heads of Llama 4, whose layers alternate; sinks are of no family with chunks."""
    shape = AttentionShape(2, 40, 8, 128, 128**-0.5, None, (256, 0), chunked=True)
    sequences = filled(shape, has_sinks=has_sinks)
    attention = make(sequences)
    for counts in ({0: 1, 3: 1, 7: 1}, {0: 1, 2: 300, 5: 17}):
        check(sequences, attention, counts)


def test_torch_gives_what_the_definition_gives_without_waiting() -> None:
    sequences = filled(NANO)
    attention = PagedAttention(NANO, sequences.pool, sequences.append)
    check(sequences, attention, {1: 1, 2: 1, 6: 1, 0: 90, 4: 3})


@pytest.mark.slow
@pytest.mark.parametrize("softcap", [None, 20.0])
def test_windows_and_caps_are_known(softcap: float | None) -> None:
    shape = AttentionShape(2, 32, 8, 128, 128**-0.5, softcap, (0, 100))
    sequences = filled(shape)
    attention = made(sequences)
    check(sequences, attention, {1: 1, 2: 1, 7: 1, 0: 90, 4: 3})


@pytest.mark.parametrize("is_flash", [True, False], ids=["flashinfer", "own"])
@pytest.mark.parametrize("shape", [LLAMA, NANO], ids=["llama", "nano"])
def test_a_captured_step_is_replayed_with_other_lengths(
    shape: AttentionShape, is_flash: bool
) -> None:
    sequences = filled(shape)
    attention = made(sequences) if is_flash else own(sequences)
    static = Static(sequences, 8)
    assert isinstance(attention, CapturingAttention)
    (attend,) = attention.captured(static.inputs)
    layers = range(len(shape.windows))
    heads = torch.stack([sequences.heads(8) for _ in layers])
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for layer in layers:
            attend(layer, heads[layer].clone())
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outs = [attend(layer, heads[layer]).clone() for layer in layers]
    for rows in ([0, 1, 2, 3, 4, 5, 6, 7], [7], [3, 0, 4], [4, 7, 0, 1, 2]):
        host, new, wanted = static.prepare(rows)
        with without_waiting():
            attend.plan(host)
            static.write()
            heads.copy_(new)
            graph.replay()
        for out, want in zip(outs, wanted, strict=True):
            close(out[: len(rows)], want)
        check(sequences, attention, {2: 1, 5: 12})  # a step that is not captured, in between


def test_a_shared_prefix_is_attended_once() -> None:
    sequences = Sequences(LLAMA, page_size=16, max_len=1600, dtype=torch.bfloat16, device="cuda")
    sequences.fill(0, 1100)
    for row in range(1, 8):
        sequences.share(row, 0, 64)
        sequences.fill(row, 10 * row)
    attention = made(sequences, shares_prefixes=True)
    assert isinstance(attention, DecodeAttention)
    assert type(attention._other).__name__ == "CascadeAttention"
    attention._other.least_saved = 7 * 1024  # type: ignore[misc]
    check(sequences, attention, dict.fromkeys(range(8), 1), shared=64)
    check(sequences, attention, {4: 1, 0: 1, 7: 1, 1: 1, 2: 1, 3: 1, 5: 1, 6: 1}, shared=64)
    check(sequences, attention, {4: 1, 0: 1, 2: 1, 1: 1, 5: 1, 6: 1, 7: 1, 3: 100}, shared=64)
