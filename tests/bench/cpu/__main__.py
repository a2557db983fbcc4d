"""Benchmark: gatewayd beside llama.cpp's server on this CPU; ``python -m tests.bench.cpu``.

``speed`` is tokens a second at each concurrency, of prompts, and with a shared prefix; ``busy``
latencies beside another process; ``start`` the time to start and peak memory; ``quality`` the
loss of each scheme of a quantized file. Both read the same files and get the same token ids, never
run at the same time, and alternate. What has been measured is kept in ``--record``: a run that was
cut continues, and rows may be measured on different days.
"""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from tokenizers import Tokenizer

from gatewayd.cli.bench.workload import corpus_text
from gatewayd_engine.model.embedded import folder
from tests.bench import llama_cpp
from tests.bench.cpu import quality
from tests.bench.cpu.contestants import Contestants
from tests.bench.cpu.models import BILLION, MODELS, NANO, SCHEMES, ServedFile
from tests.bench.cpu.processor import described
from tests.bench.cpu.record import CONTESTANTS, LLAMA, Record
from tests.bench.cpu.speed import Rounds
from tests.bench.cpu.table import markdown, rows
from tests.bench.cpu.workloads import KINDS, LEVELS, latency, workloads

PARTS = ("speed", "busy", "start", "quality")
_BUSY_LEVELS = (1, 8)
_Names = tuple[str, ...]
# Of each part, unless schemes are given: every one takes minutes, and latencies beside another
# process differ little from one to the next.
_DEFAULT_SCHEMES: dict[str, dict[str, _Names]] = {
    "speed": {NANO: ("f32", "bf16", "q8_0", "q4_0"), BILLION: ("bf16", "q8_0", "q4_0", "q4_k")},
    "busy": {NANO: ("f32",), BILLION: ("q4_0",)},
    "start": {NANO: ("f32", "q8_0"), BILLION: ("bf16", "q8_0", "q4_0")},
}


def main() -> int:
    """Measure what is asked for and missing, and print the table of all that is there."""
    args = _arguments()
    # As after Ctrl-C, servers are stopped.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    names, commit = list(args.contestants), _commit()
    is_built = args.llama_server.exists()
    if not is_built:
        names = [name for name in names if name != LLAMA]
        print("llama.cpp and its files are left out: run tests/bench/llama_cpp.py", file=sys.stderr)
    contestants = Contestants(args.llama_server, args.llama_threads, tuple(shlex.split(args.serve)))
    header = described() | {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "commit": commit,
        "command": shlex.join(["python", "-m", "tests.bench.cpu", *sys.argv[1:]]),
        "contestants_options": f"{args.serve} threads {args.llama_threads}",
    }
    try:
        # By default a file for each commit, so that a changed one is measured once more.
        record = Record(args.record or Path(f"out/cpu-{commit}.jsonl"), header)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    tokenizer = Tokenizer.from_file(str(folder() / "tokenizer.json"))
    corpus = tokenizer.encode(corpus_text(), add_special_tokens=False).ids
    rounds = Rounds(record, contestants, names, args.rounds, corpus)
    for part in args.parts:
        for file in _files(part, args.models, args.schemes):
            if is_built:
                file.make()
            elif not file.serves_embedded:
                continue
            _measure(part, file, rounds, args)
            if args.markdown is not None:
                args.markdown.write_text(markdown(record, [*rows(record)]))
    compared = list(rows(record))
    sections = [markdown(record, compared)] if compared else []
    lost = quality.measure() if "quality" in args.parts and is_built else []
    if lost:
        sections.append(quality.markdown(lost))
    text = "\n".join(sections)
    if args.markdown is not None:
        args.markdown.write_text(text)
    if args.json:
        found = [row.values() for row in compared]
        document = {"header": record.header, "rows": found, "quality": msgspec.to_builtins(lost)}
        text = json.dumps(document, indent=2)
    print(text)
    return int(args.strict and any(row.is_met is False for row in compared))


def _measure(part: str, file: ServedFile, rounds: Rounds, args: argparse.Namespace) -> None:
    if part == "speed":
        rounds.compare(file, workloads(file.model, args.workloads, args.levels))
    elif part == "busy":
        levels = [level for level in _BUSY_LEVELS if level in args.levels]
        rounds.compare_busy(file, [latency(file.model, level) for level in levels])
    else:
        rounds.compare_start(file)


def _files(part: str, models: _Names, schemes: _Names) -> list[ServedFile]:
    usual = _DEFAULT_SCHEMES.get(part, {})
    if not usual:
        return []
    return [ServedFile(model, scheme) for model in models for scheme in schemes or usual[model]]


def _commit() -> str:
    """The commit that is measured; marked if files differ from it."""
    command = ("git", "describe", "--always", "--dirty", "--exclude", "*")
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.cpu", description=__doc__)
    for name, known, usual in (
        ("parts", PARTS, ("speed",)),
        ("models", MODELS, MODELS),
        ("schemes", SCHEMES, ()),
        ("workloads", KINDS, KINDS),
        ("contestants", CONTESTANTS, CONTESTANTS),
    ):
        words = ", ".join(known)
        parser.add_argument(
            f"--{name}", type=_names(known), default=usual, metavar="A,B", help=f"of {words}"
        )
    parser.add_argument("--levels", type=_numbers, default=LEVELS, metavar="A,B")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--record", type=Path, metavar="FILE")
    parser.add_argument("--llama-server", type=Path, default=llama_cpp.tool("llama-server"))
    parser.add_argument("--llama-threads", type=int, default=2)
    parser.add_argument("--serve", default="", help="more options for `gatewayd serve`")
    parser.add_argument("--markdown", type=Path, metavar="OUT", help="write the table there")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--strict", action="store_true", help="status 1 where a goal is missed")
    return parser.parse_args()


def _names(known: Sequence[str]) -> Callable[[str], _Names]:
    def parse(text: str) -> _Names:
        found = tuple(text.split(","))
        if unknown := [name for name in found if name not in known]:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(known)}")
        return found

    return parse


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(","))


if __name__ == "__main__":
    sys.exit(main())
