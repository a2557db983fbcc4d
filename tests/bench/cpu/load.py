"""Load on one server: sends a workload's requests and gives the figures that tables need."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import uvloop

from gatewayd.cli.bench.load import LoadTarget, Stop
from gatewayd.cli.bench.stats import Level
from gatewayd.cli.bench.sweep import LoadLevel, SweepPlan, measure
from gatewayd.cli.bench.workload import Item, RequestShape, synthetic
from gatewayd.cli.client.api import ApiClient
from tests.bench.cpu.workloads import Workload

_WARM_SHAPE = RequestShape(prompt_tokens=64, output_tokens=32)
_WARM_REQUESTS = 4


def items(corpus: Sequence[int], shape: RequestShape, seed: str, count: int) -> list[Item]:
    """The same requests for all contestants with the same seed, and no prompt of another seed."""
    return list(islice(synthetic(corpus, shape, _number(seed)), count))


def figures(url: str, workload: Workload, corpus: Sequence[int], seed: str) -> dict[str, float]:
    """Measure a workload on a server that runs alone.

    Raises:
        RuntimeError: a request fails.
    """
    warmup = workload.warmup
    if workload.is_cold:
        # Other text, so that the process meets the prefix unprepared.
        other = items(corpus, _WARM_SHAPE, f"{seed} warm", _WARM_REQUESTS)
        _level(url, 1, other, 0)
    # With a warm-up, one more request before it.
    count = workload.requests + (warmup + 1 if warmup else 0)
    sent = items(corpus, workload.shape, f"{seed} {workload.name}", count)
    return figures_of(_level(url, workload.concurrency, sent, warmup))


def figures_of(level: Level) -> dict[str, float]:
    """The figures of a level that tables compare, by name and unit."""
    found = {
        "tok/s": level.output_tokens_per_second,
        "requests/s": level.requests_per_second,
    }
    if level.ttft is not None:
        found["TTFT p50, ms"] = level.ttft.p50
        found["prompt tok/s"] = 1000 * level.prompt_tokens / level.succeeded / level.ttft.p50
    if level.tpot is not None and level.tpot.p50:
        found["TPOT p50, ms"], found["TPOT p99, ms"] = level.tpot.p50, level.tpot.p99
        found["decode tok/s"] = 1000 * level.value / level.tpot.p50
    return found


def _level(url: str, concurrency: int, sent: Sequence[Item], warmup: int) -> Level:
    measured = uvloop.run(_measured(url, concurrency, sent, warmup))
    if measured.errors:
        raise RuntimeError(f"{url}: {measured.errors}")
    return measured


async def _measured(url: str, concurrency: int, sent: Sequence[Item], warmup: int) -> Level:
    stop = Stop(requests=len(sent) - (warmup + 1 if warmup else 0))
    plan = SweepPlan([LoadLevel("concurrency", concurrency)], stop, warmup)
    async with ApiClient(url, keep_alive=False) as client:
        target = LoadTarget(client, (await client.models())[0])
        (measured,) = await measure(target, iter(sent), plan)
    return measured


def _number(seed: str) -> int:
    return int.from_bytes(seed.encode(), "big")
