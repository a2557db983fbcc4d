"""Workloads of the CPU comparison: what is sent to a server, and how much of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from gatewayd.cli.bench.workload import RequestShape
from tests.bench.cpu.models import NANO

LEVELS = (1, 8, 32, 64)
PROMPTS = (64, 1024)
KINDS = ("decode", "prompt", "shared")
SLOT_TOKENS = 1088
"""Context of a slot of llama.cpp: the longest prompt and its answer."""


class _Size(NamedTuple):
    """How much of everything a model gets, for rounds of minutes whatever its size."""

    output_tokens: int
    requests_per_level: float
    least_requests: int
    prompts: int
    shared_requests: int
    shared_concurrency: int
    latencies: tuple[int, int]
    """Least requests whose latencies are measured, and how many for each in flight."""


_SMALL = _Size(128, 3, 8, 16, 200, 16, (32, 12))
_LARGE = _Size(32, 1, 4, 4, 12, 4, (8, 2))


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests of one shape at one concurrency.

    Attributes:
        kind: one of ``KINDS``.
        name: in tables and records.
        shape: of each request.
        concurrency: requests in flight.
        requests: measured ones.
        warmup: requests before them; 0 for a fresh process, which gets other text instead.
    """

    kind: str
    name: str
    shape: RequestShape
    concurrency: int
    requests: int
    warmup: int

    @property
    def is_cold(self) -> bool:
        """Whether it needs a process that has not seen its prefix."""
        return self.kind == "shared"


def workloads(model: str, kinds: tuple[str, ...], levels: tuple[int, ...]) -> list[Workload]:
    """The workloads of a model, those of one process first."""
    size = _SMALL if model == NANO else _LARGE
    found = []
    if "decode" in kinds:
        found += [_decode(size, level) for level in levels]
    if "prompt" in kinds:
        found += [_prompt(size, tokens) for tokens in PROMPTS]
    if "shared" in kinds:
        shape = RequestShape(prompt_tokens=10, output_tokens=16, shared_prefix_tokens=700)
        count, width = size.shared_requests, size.shared_concurrency
        name = f"{count} requests, 700 shared + 10 own"
        found.append(Workload("shared", name, shape, width, count, 0))
    return found


def latency(model: str, level: int) -> Workload:
    """Decoding at one concurrency, with more requests, as for a 99th percentile."""
    size = _SMALL if model == NANO else _LARGE
    shape = RequestShape(prompt_tokens=64, output_tokens=size.output_tokens)
    least, each = size.latencies
    return Workload("decode", f"concurrency {level}", shape, level, max(least, each * level), 2)


def _decode(size: _Size, level: int) -> Workload:
    shape = RequestShape(prompt_tokens=64, output_tokens=size.output_tokens)
    count = max(size.least_requests, round(size.requests_per_level * level))
    return Workload("decode", f"concurrency {level}", shape, level, count, min(4, count // 2))


def _prompt(size: _Size, tokens: int) -> Workload:
    # Two tokens of output: the time to the first counts.
    shape = RequestShape(prompt_tokens=tokens, output_tokens=2)
    return Workload("prompt", f"prompt of {tokens:,}", shape, 1, size.prompts, 1)
