"""A GPU that decodes does not wait for the host, and the host does little for it."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from gatewayd.cli.bench.dummy import write_llama_8b
from tests.engine.core.conftest import Harness, mixed_prompts
from tests.gpu import figures
from tests.gpu.engines import on_gpu

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.timeout(900),  # kernels that nobody has compiled yet
]

STEPS = 50
MOST_MICROSECONDS = 8.0
"""Of the host, for a token of a request."""
NEEDED = 40 << 30
"""Bytes: weights of the 8B shape, a pool, and what a step takes."""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    """The shape of Llama 3.1 8B."""
    if torch.cuda.mem_get_info()[0] < NEEDED:
        pytest.skip("the GPU has too little free memory for the 8B shape")
    folder = tmp_path_factory.mktemp("llama-8b")
    write_llama_8b(folder)
    made = on_gpu(
        folder,
        dummy_weights=True,
        kv_pages=None,
        kv_bytes=16 << 30,
        max_model_len=2048,
        max_running=256,
        max_batch_tokens=8192,
    )
    yield made
    made.core.strategies.close()
    del made
    gc.collect()
    torch.cuda.empty_cache()


def decoding(engine: Harness, batch: int, new: int) -> list[int]:
    """Bring so many sequences to where all of them decode."""
    prompts = mixed_prompts(batch, 4096, 128, seed=batch)
    ids = [engine.submit(prompt, max_tokens=new, ignore_eos=True)[0] for prompt in prompts]
    while not all(len(engine.answers[i].tokens) >= 5 for i in ids):
        engine.step()
    assert engine.core.stats.num_running == batch
    return ids


def finish(engine: Harness, ids: list[int]) -> None:
    engine.core.abort(ids)
    engine.run()


def test_decoding_at_batch_64_keeps_the_gpu_busy(engine: Harness, tmp_path: Path) -> None:
    batch = 64
    ids = decoding(engine, batch, 4 * STEPS)
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        began = time.perf_counter()
        for _ in range(STEPS):
            engine.step()
        torch.cuda.synchronize()
        seconds = time.perf_counter() - began
    finish(engine, ids)
    trace = tmp_path / "trace.json"
    profiler.export_chrome_trace(str(trace))
    kernels = figures.kernels_of(trace)
    found: dict[str, Any] = {
        **figures.timeline(kernels),
        "device": torch.cuda.get_device_name(),
        "batch": batch,
        "steps": STEPS,
        "kernels_per_step": len(kernels) / STEPS,
        "host_seconds_per_step": seconds / STEPS,
    }
    figures.write("decode_llama_8b", found)
    assert figures.keeps_busy(found), found


@pytest.mark.parametrize("batch", [64, 256])
def test_the_host_does_little_for_each_token(engine: Harness, batch: int) -> None:
    ids = decoding(engine, batch, 4 * STEPS)
    # Whoever waits for the device sleeps, and sleeping is not counted.
    thread, wall, tokens = time.thread_time(), time.perf_counter(), 0
    for _ in range(STEPS):
        tokens += engine.core.step().stats.step_tokens
    thread, wall = time.thread_time() - thread, time.perf_counter() - wall
    finish(engine, ids)
    assert tokens == batch * STEPS
    microseconds = thread / tokens * 1e6
    found = {
        "device": torch.cuda.get_device_name(),
        "batch": batch,
        "host_microseconds_per_token": microseconds,
        "host_share_of_a_step": thread / wall,
        "seconds_per_step": wall / STEPS,
    }
    figures.write(f"host_batch_{batch}", found)
    if batch == 256:
        assert microseconds < MOST_MICROSECONDS, found
