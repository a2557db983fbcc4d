"""Benchmark: CPU throughput in fp32 of generate, the daemon and llama.cpp's server.

Prompts of 64 tokens, 128 out, greedy, end token ignored, over HTTP with streaming; then 200
requests of 700 shared and 10 own tokens, 16 out. Both servers get the same token ids from the
same client and are never alive at the same time; rounds alternate, and medians are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import uvloop
from tokenizers import Tokenizer

from gatewayd.cli.bench.load import LoadTarget, Stop
from gatewayd.cli.bench.stats import Level
from gatewayd.cli.bench.sweep import LoadLevel, SweepPlan, measure
from gatewayd.cli.bench.workload import Item, RequestShape, corpus_text, synthetic
from gatewayd.cli.client.api import ApiClient
from gatewayd_engine.model.embedded import folder
from tests.bench import llama_cpp, report, servers

PLAIN = RequestShape(prompt_tokens=64, output_tokens=128)
SHARED = RequestShape(prompt_tokens=10, output_tokens=16, shared_prefix_tokens=700)
SHARED_CONCURRENCY = 16
SHARED_REQUESTS = 200
LEVELS = (1, 8, 32, 64)
GENERATE_BATCHES = (1, 32)
AGAINST_GENERATE = {1: 3.5, 32: 2.3}
AGAINST_LLAMA_CPP = {8: 1.3, 32: 1.8, 64: 2.0}
AGAINST_LLAMA_CPP_SHARED = 3.0
GENERATE_ENVIRONMENTS: tuple[dict[str, str], ...] = (
    {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"},
    {},
)
WARMUP = 4
SLOT_TOKENS = 1024

Speeds = dict[str, list[float]]
Start = Callable[[int, Path], AbstractContextManager[str]]


@dataclass(frozen=True, slots=True)
class Setting:
    """What a run measures; smaller than the real one only to try the script.

    Attributes:
        levels: concurrencies.
        requests: per level, as a multiple of the concurrency; at least 8.
        shared_requests: of the second workload; 0 leaves it out.
        corpus: what prompts are cut from.
        details: every level of every round, as it was measured.
    """

    levels: Sequence[int]
    requests: int
    shared_requests: int
    corpus: Sequence[int]
    details: list[dict[str, object]]

    def stop(self, concurrency: int) -> Stop:
        """How many requests a level has."""
        return Stop(requests=max(8, self.requests * concurrency))


def items_of(setting: Setting, shape: RequestShape, seed: int, count: int) -> list[Item]:
    """The same requests for everyone who asks with the same seed."""
    return list(islice(synthetic(setting.corpus, shape, seed), count))


async def level(url: str, concurrency: int, items: Sequence[Item], warmup: int) -> Level:
    """Measure one level with exactly these requests, the first ones unmeasured."""
    cold = 1 if warmup else 0
    stop = Stop(requests=len(items) - warmup - cold)
    plan = SweepPlan([LoadLevel("concurrency", concurrency)], stop, warmup)
    async with ApiClient(url, keep_alive=False) as client:
        target = LoadTarget(client, (await client.models())[0])
        (measured,) = await measure(target, iter(items), plan)
    if measured.errors:
        raise RuntimeError(f"{url}: {measured.errors}")
    return measured


def measure_server(name: str, start: Start, setting: Setting, seed: int, speeds: Speeds) -> None:
    """One round of one server: the levels on one process, the shared prefix on a fresh one."""

    def note(what: str, measured: Level) -> None:
        entry = {"server": name, "what": what, "seed": seed, "seconds": measured.seconds}
        spreads = {"ttft": measured.ttft, "tpot": measured.tpot}
        p50 = {key: spread.p50 for key, spread in spreads.items() if spread}
        entry |= {"output_tokens_per_second": measured.output_tokens_per_second, "p50_ms": p50}
        setting.details.append(entry)
        print(f"{name} {what}: {measured.output_tokens_per_second:.0f} tok/s", file=sys.stderr)

    with tempfile.TemporaryDirectory() as logs:
        with start(max(setting.levels), Path(logs) / "plain.log") as url:
            for place, concurrency in enumerate(setting.levels):
                count = 1 + WARMUP + (setting.stop(concurrency).requests or 0)
                items = items_of(setting, PLAIN, 1000 * seed + place, count)
                measured = uvloop.run(level(url, concurrency, items, WARMUP))
                speeds[f"{name} {concurrency}"].append(measured.output_tokens_per_second)
                note(f"c={concurrency}", measured)
        if not setting.shared_requests:
            return
        with start(SHARED_CONCURRENCY, Path(logs) / "shared.log") as url:
            # The process is warmed up on other text, so that it meets the prefix unprepared.
            warm = items_of(setting, PLAIN, 1000 * seed + 900, 9)
            uvloop.run(level(url, 1, warm, 0))
            items = items_of(setting, SHARED, 1000 * seed + 901, setting.shared_requests)
            measured = uvloop.run(level(url, SHARED_CONCURRENCY, items, 0))
            speeds[f"{name} shared"].append(measured.requests_per_second)
            note("shared prefix", measured)


def measure_generate(setting: Setting, seed: int, speeds: Speeds) -> None:
    """One round of Hugging Face generate, in processes of its own.

    Its threads may spin or sleep while they wait; which is better depends on how busy the machine
    is, and it is given the better of the two.
    """
    prompts = [item.prompt for item in items_of(setting, PLAIN, 1000 * seed, 64)]
    best: dict[str, float] = {}
    for environment in GENERATE_ENVIRONMENTS:
        done = subprocess.run(
            [
                *(sys.executable, str(Path(__file__).with_name("hf_generate.py")), str(folder())),
                *("--batches", ",".join(map(str, GENERATE_BATCHES))),
                *("--output-tokens", str(PLAIN.output_tokens)),
            ],
            input=json.dumps(prompts),
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, **environment},
        )
        for size, speed in json.loads(done.stdout).items():
            best[size] = max(speed, best.get(size, 0.0))
    for size, speed in best.items():
        speeds[f"generate {size}"].append(speed)
        print(f"generate batch {size}: {speed:.0f} tok/s", file=sys.stderr)


def findings_of(speeds: Speeds, levels: Sequence[int]) -> list[report.Finding]:
    """Medians beside each other, with what is promised."""
    middle = {name: report.median(values) for name, values in speeds.items()}
    findings = []

    def compare(name: str, ours: str, other: str, unit: str, target: float | None) -> None:
        if ours in middle and other in middle:
            words = {"generate": "HF generate", "llama": "llama.cpp f32"}[other.split()[0]]
            findings.append(report.Finding(name, unit, middle[ours], middle[other], words, target))

    for size in GENERATE_BATCHES:
        name = f"concurrency {size} / batch {size}"
        compare(name, f"ours {size}", f"generate {size}", "tok/s", AGAINST_GENERATE.get(size))
    for n in levels:
        compare(f"concurrency {n}", f"ours {n}", f"llama {n}", "tok/s", AGAINST_LLAMA_CPP.get(n))
    compare("shared prefix", "ours shared", "llama shared", "req/s", AGAINST_LLAMA_CPP_SHARED)
    return findings


def main() -> int:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--levels", default=",".join(map(str, LEVELS)))
    parser.add_argument("--requests", type=int, default=3, help="times the concurrency")
    parser.add_argument("--shared-requests", type=int, default=SHARED_REQUESTS)
    parser.add_argument("--llama-server", type=Path, default=llama_cpp.server())
    parser.add_argument("--gguf", type=Path, default=llama_cpp.gguf("f32"))
    parser.add_argument("--llama-threads", type=int, default=2)
    parser.add_argument("--serve", default="", help="more options for `gatewayd serve`")
    parser.add_argument("--only", default="generate,ours,llama")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--strict", action="store_true")
    args = parser.parse_args()

    contestants = args.only.split(",")
    if "llama" in contestants and not args.llama_server.exists():
        contestants.remove("llama")
        print("llama.cpp is left out: build it with tests/bench/llama_cpp.py", file=sys.stderr)
    tokenizer = Tokenizer.from_file(str(folder() / "tokenizer.json"))
    corpus = tokenizer.encode(corpus_text(), add_special_tokens=False).ids
    levels = [int(word) for word in args.levels.split(",")]
    setting = Setting(levels, args.requests, args.shared_requests, corpus, [])
    where = report.machine()

    def start_ours(width: int, log: Path) -> AbstractContextManager[str]:
        port = servers.free_port()
        command = servers.gatewayd(port, *args.serve.split())
        return servers.serving(command, port, log, path="/readyz")

    def start_llama(width: int, log: Path) -> AbstractContextManager[str]:
        port = servers.free_port()
        command = servers.llama_cpp(
            args.llama_server,
            args.gguf,
            port,
            slots=width,
            slot_tokens=SLOT_TOKENS,
            threads=args.llama_threads,
        )
        return servers.serving(command, port, log, path="/health")

    speeds: Speeds = defaultdict(list)
    for seed in range(args.rounds):
        turn = contestants[seed % len(contestants) :] + contestants[: seed % len(contestants)]
        for name in turn:
            if name == "generate":
                measure_generate(setting, seed, speeds)
            else:
                start = start_ours if name == "ours" else start_llama
                measure_server(name, start, setting, seed, speeds)
    title = f"CPU, embedded model, fp32; medians of {args.rounds} rounds"
    details = {"speeds": speeds, "levels": setting.details}
    return report.publish(
        *(title, where, findings_of(speeds, levels)),
        as_json=args.json,
        strict=args.strict,
        details=details,
    )


if __name__ == "__main__":
    sys.exit(main())
