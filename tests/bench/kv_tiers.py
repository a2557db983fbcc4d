"""Benchmark: time saved by a KV tier hit by prompt length, and the break-even length of swapping.

The time to a prompt's first token where all of it is computed, and where all but its last page is
in the pool, in host memory, or in a file that the system has in its memory. Then what a preemption
costs by either mode, until the next token, and the lines that the engine has learned from it.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from gatewayd_engine.core.engine_core import EngineCore
from gatewayd_engine.process.config import StrategyChoice
from gatewayd_hooks.preemption import PreemptionMode, Victim
from gatewayd_hooks.strategy import Kind
from tests.bench import report
from tests.bench.in_process_engine import Drive, Job, make_core

LENGTHS = (64, 256, 1024, 1984)
SOURCES = ("computed", "pool", "host", "disk")
PAGES = 200


def prompt_of(length: int, seed: int) -> list[int]:
    """Tokens that no other prompt begins with."""
    chance = random.Random(seed)
    return [chance.randrange(300, 4000) for _ in range(length)]


def evict_all(core: EngineCore) -> None:
    """Others have had every page that nobody holds."""
    pages = core._pages
    pages.release([pages.allocate() for _ in range(pages.num_available)])


def first_token(drive: Drive, prompt: Sequence[int]) -> tuple[float, int]:
    """Seconds to a prompt's first token, and what it is."""
    begin = time.perf_counter()
    sequence = drive.submit(Job(prompt, 2))
    while not drive.tokens[sequence]:
        drive.step()
        if not drive.core.stats.step_tokens:
            time.sleep(0.001)  # as an engine does that waits for a device
    seconds = time.perf_counter() - begin
    drive.finish()
    return seconds, drive.tokens[sequence][0]


def cores(folder: str) -> dict[str, EngineCore]:
    """An engine for each source."""
    sized: dict[str, Any] = {"kv_pages": PAGES}
    disk = StrategyChoice("disk", {"path": folder, "size": "1GiB"})
    return {
        "computed": make_core(prefix_cache=None, **sized),
        "pool": make_core(**sized),
        "host": make_core(kv_tiers=[StrategyChoice("host")], **sized),
        "disk": make_core(kv_tiers=[disk], **sized),
    }


def measure(rounds: int) -> dict[int, dict[str, list[float]]]:
    """Seconds to the first token, by length and source.

    Raises:
        RuntimeError: a source changed a token.
    """
    took: dict[int, dict[str, list[float]]] = {
        length: {source: [] for source in SOURCES} for length in LENGTHS
    }
    with tempfile.TemporaryDirectory() as folder:
        made = cores(folder)
        drives = {source: Drive(core) for source, core in made.items()}
        for turn in range(rounds + 1):
            for length in LENGTHS:
                prompt = prompt_of(length, turn * 10_000 + length)
                tokens = set()
                for source, drive in drives.items():
                    first_token(drive, prompt)
                    if source in ("host", "disk"):
                        evict_all(made[source])
                        time.sleep(0.05)  # written behind
                    seconds, token = first_token(drive, prompt)
                    tokens.add(token)
                    if turn:
                        took[length][source].append(seconds)
                if len(tokens) > 1:
                    raise RuntimeError(f"a tier changed a token of a prompt of {length}")
        for core in made.values():
            core.strategies.close()
    return took


def resume(core: EngineCore, prompt: Sequence[int], mode: PreemptionMode) -> tuple[float, int]:
    """Seconds that a preemption costs, both ways and to the next token; and that token."""
    drive = Drive(core)
    drive.next_id = core.stats.step + 1_000_000
    sequence = drive.submit(Job(prompt, 3))
    while not drive.tokens[sequence]:
        drive.step()
    found = core._queue.find(sequence)
    if found is None:
        raise RuntimeError("it has ended too soon")
    begin = time.perf_counter()
    core._placement.preemption.preempt(Victim(found.slot, mode))
    out = time.perf_counter() - begin
    evict_all(core)
    begin = time.perf_counter()
    while len(drive.tokens[sequence]) < 2:
        drive.step()
    back = time.perf_counter() - begin
    drive.finish()
    return out + back, drive.tokens[sequence][1]


def measure_swaps(rounds: int) -> tuple[dict[int, dict[str, list[float]]], dict[str, float]]:
    """Seconds that a preemption costs, by length and mode; and what the engine has learned.

    Raises:
        RuntimeError: swapping changed a token.
    """
    core = make_core(prefix_cache=None, kv_pages=PAGES, preemption=StrategyChoice("swap"))
    took: dict[int, dict[str, list[float]]] = {
        length: {mode.value: [] for mode in PreemptionMode} for length in LENGTHS
    }
    for turn in range(rounds + 1):
        for length in LENGTHS:
            prompt = prompt_of(length - 3, turn * 10_000 + length)
            ends = [(mode, *resume(core, prompt, mode)) for mode in PreemptionMode]
            if len({token for _, _, token in ends}) > 1:
                raise RuntimeError(f"swapping changed a token behind a prompt of {length}")
            for mode, seconds, _ in ends if turn else ():
                took[length][mode.value].append(seconds)
    costs = core._placement.offload.costs
    core.strategies.bound[Kind.PREEMPTION].learn(costs)
    learned = {
        "microseconds a token": 1e6 * costs.token_seconds,
        "microseconds a swap": 1e6 * costs.swap_seconds,
        "microseconds a page": 1e6 * costs.page_seconds,
        "crossover, tokens": core.strategies.bound[Kind.PREEMPTION].crossover,
    }
    core.strategies.close()
    return took, learned


def main() -> int:
    """Run the comparison.

    Raises:
        RuntimeError: a tier or a preemption changed a token.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--strict", action="store_true")
    args = parser.parse_args()
    where = report.machine()
    took = measure(args.rounds)
    findings = [
        report.Finding(
            f"first token of {length} tokens, from {source}",
            "ms",
            1000 * report.median(by_source[source]),
            1000 * report.median(by_source["computed"]),
            "computed",
            sign="<=",
        )
        for length, by_source in took.items()
        for source in SOURCES[1:]
    ]
    swaps, learned = measure_swaps(args.rounds)
    findings += [
        report.Finding(
            f"a preemption at {length} tokens, swap",
            "ms",
            1000 * report.median(by_mode["swap"]),
            1000 * report.median(by_mode["recompute"]),
            "recompute",
            sign="<=",
        )
        for length, by_mode in swaps.items()
    ]
    title = "KV tiers and swapping"
    return report.publish(
        *(title, where, findings), as_json=args.json, strict=args.strict, details=learned
    )


if __name__ == "__main__":
    sys.exit(main())
