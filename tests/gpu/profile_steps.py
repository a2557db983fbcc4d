"""What the kernels of a step take: a table by kernel, and a trace for Perfetto or chrome://tracing.

    python tests/gpu/profile_steps.py --batch 256 --context 256 [--prompt 2048] [--out FOLDER]

Profiles decode steps of the Llama 3.1 8B shape with random weights, or, with ``--prompt``, steps
that compute so many tokens of prompts. ``--device cpu`` tries the script on the embedded model.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

sys.path.insert(0, str(Path(__file__).parents[2]))

from gatewayd.cli.bench.dummy import write_llama_8b
from tests.engine.core.conftest import Harness, build
from tests.gpu.figures import timeline

_STEPS = 20
_PROMPT_STEPS = 4
_UNCOUNTED = 2
_SHOWN = 25
_NAME_CHARS = 76


class Launch(NamedTuple):
    """A kernel that ran; microseconds."""

    name: str
    start: float
    duration: float


class Row(NamedTuple):
    """All launches of one kernel in a step, on average; microseconds."""

    name: str
    launches: float
    microseconds: float


def launches_of(trace: Path, category: str) -> list[Launch]:
    """The events of a category in a trace of torch's profiler."""
    events = json.loads(trace.read_text("utf-8"))["traceEvents"]
    return [
        Launch(event["name"], float(event["ts"]), float(event["dur"]))
        for event in events
        if event.get("cat") == category
    ]


def rows_of(launches: Iterable[Launch], steps: int) -> list[Row]:
    """Launches by kernel, those that take longest first."""
    found: dict[str, list[float]] = defaultdict(list)
    for launch in launches:
        found[launch.name].append(launch.duration)
    rows = [Row(name, len(some) / steps, sum(some) / steps) for name, some in found.items()]
    return sorted(rows, key=lambda row: -row.microseconds)


def report(launches: list[Launch], steps: int) -> str:
    """A table of kernels and the device's idle time."""
    rows = rows_of(launches, steps)
    whole = timeline((launch.start, launch.duration) for launch in launches)
    busy = sum(row.microseconds for row in rows)
    step = whole["seconds"] * 1e6 / steps
    lines = [
        f"{step:9.1f} us a step, {sum(row.launches for row in rows):.0f} kernels of {busy:.1f} us;"
        f" idle {whole['idle']:.1%}, of that in long gaps {whole['idle_in_long_gaps']:.1%}",
        f"{'us':>9} {'share':>6} {'launches':>9}  kernel",
    ]
    lines += [
        f"{row.microseconds:9.1f} {row.microseconds / busy:6.1%} {row.launches:9.1f}"
        f"  {row.name[:_NAME_CHARS]}"
        for row in rows[:_SHOWN]
    ]
    return "\n".join(lines)


def _engine(device: str, batch: int, context: int, prompt: int, folder: Path) -> Harness:
    tokens = prompt or 8192
    if device == "cpu":
        return build(max_running=batch, max_batch_tokens=tokens, prefix_cache=None)
    write_llama_8b(folder)
    return build(
        folder,
        device=device,
        dummy_weights=True,
        kv_pages=None,
        kv_bytes=16 << 30,
        max_model_len=max(2048, 2 * context, prompt + 1),
        max_running=batch,
        max_batch_tokens=tokens,
        prefix_cache=None,
    )


def _prompts(engine: Harness, count: int, length: int) -> list[list[int]]:
    """Random token ids."""
    draw = random.Random(count)
    return [
        [draw.randrange(2, engine.info.vocab_size) for _ in range(length)] for _ in range(count)
    ]


def _run(engine: Harness, batch: int, context: int, prompt: int, trace: Path) -> int:
    """Bring the engine to where it computes such steps, and profile some."""
    steps = _PROMPT_STEPS if prompt else _STEPS
    if prompt:
        # Each fills a step.
        for ids in _prompts(engine, _UNCOUNTED + steps, prompt):
            engine.submit(ids, max_tokens=1, ignore_eos=True)
    else:
        for ids in _prompts(engine, batch, context):
            engine.submit(ids, max_tokens=4 * steps, ignore_eos=True)
        while engine.core.stats.num_running < batch or engine.core.stats.num_waiting:
            engine.step()
    for _ in range(_UNCOUNTED):
        engine.step()
    on_gpu = torch.cuda.is_available()
    activities = [ProfilerActivity.CUDA] if on_gpu else [ProfilerActivity.CPU]
    with profile(activities=activities) as profiler:
        for _ in range(steps):
            engine.step()
        if on_gpu:
            torch.cuda.synchronize()
    profiler.export_chrome_trace(str(trace))
    return steps


def main() -> None:
    """Profile, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--prompt", type=int, default=0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = asked.out or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        engine = _engine(asked.device, asked.batch, asked.context, asked.prompt, Path(temporary))
        trace = folder / f"batch-{asked.batch}-prompt-{asked.prompt}.json"
        steps = _run(engine, asked.batch, asked.context, asked.prompt, trace)
        category = "cpu_op" if asked.device == "cpu" else "kernel"
        print(report(launches_of(trace, category), steps))
        if asked.out:
            print(f"trace: {trace}")
        engine.core.strategies.close()


if __name__ == "__main__":
    main()
