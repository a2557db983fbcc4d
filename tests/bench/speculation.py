"""Benchmark: speculative decoding against none: acceptance, tokens per step, predicted speedup.

Two sets of prompts: chats of the kind that the embedded model was made for, and chats that ask a
second time for what stands in them already, whose answers copy. Each drafter runs with a fixed
number of drafts, to be held against the formula (``gatewayd.cli.bench.speedup``), and with the
adaptive controller, which must not lose at any number of sequences. An engine with drafts and one
without take turns step by step, so that a slow minute of the machine is shared; both must give
the same tokens. They run on one thread: each would set the number of threads for the other.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Generator, Sequence
from typing import Any

from tests.bench import report
from tests.bench.draft_statistics import Compared, Step, calm
from tests.bench.in_process_engine import Drive, Job, make_core

# The engine's threads come before numpy's.
# isort: split
import numpy as np
from tokenizers import Tokenizer

from gatewayd_engine.model.embedded import folder
from gatewayd_engine.process.config import StrategyChoice
from gatewayd_engine.process.messages import SwapStrategy
from gatewayd_hooks.strategy import Kind

DRAFTS = {"ngram": 6, "lookahead": 10, "draft_model": 3, "medusa": 5, "eagle": 4}
"""Drafts of a fixed run: nodes, for those that guess trees."""
FUNCTIONS = [
    "bisect.bisect_left",
    "textwrap.wrap",
    "heapq.merge",
    "shlex.split",
    "fnmatch.filter",
    "os.path.join",
    "json.dumps",
    "shutil.copytree",
    "glob.glob",
    "string.capwords",
    "random.shuffle",
    "copy.deepcopy",
    "calendar.isleap",
    "csv.reader",
    "keyword.iskeyword",
    "statistics.mean",
]
QUESTIONS = ("Show me the source of {}.", "What does {} do?", "How do I call {}?")
LEAST_COPYING, LEAST_ADAPTIVE = 1.5, 0.97


class Observed:
    """A core whose decoding steps are written down; it begins without a drafter."""

    def __init__(self, controller: StrategyChoice, batch: int) -> None:
        self.core = make_core(
            spec_controller=controller,
            max_running=batch,
            prefix_cache=None,
            threads=1,
        )
        self.drive = Drive(self.core)
        self._size = batch
        self._batch: Any = None
        runner: Any = self.core._runner
        run = runner.run

        def watched(batch: Any) -> Any:
            result = run(batch)
            self._batch = batch, result
            return result

        runner.run = watched

    def draft_with(self, *drafters: str) -> None:
        """Have another drafter from now on, or none."""
        choices = [StrategyChoice(name) for name in drafters]
        self.core.swaps.start(SwapStrategy(1, Kind.DRAFTER.value, choices))
        while not (answers := self.core.swaps.complete_ready()):
            time.sleep(0.001)
        if answers[0].error:
            raise RuntimeError(answers[0].error)

    def steps(self, jobs: Sequence[Job]) -> Generator[Step | None, None, list[list[int]]]:
        """All jobs, a full batch at any time; None for steps in which not all of it decodes.

        Returns their tokens.
        """
        sequences = [self.drive.submit(job) for job in jobs]
        while self.core.has_work:
            before = self._count(sequences)
            began = time.perf_counter()
            self.drive.step()
            seconds = time.perf_counter() - began
            batch, result = self._batch
            tokens = self._count(sequences) - before
            is_full = batch.num_decode == len(batch) == self._size
            yield self._step(batch, result, seconds, tokens) if is_full else None
        return [self.drive.tokens.pop(s) for s in sequences]

    def _count(self, sequences: Sequence[int]) -> int:
        return sum(len(self.drive.tokens[s]) for s in sequences)

    def _step(self, batch: Any, result: Any, seconds: float, tokens: int) -> Step:
        depths = np.zeros(len(batch), np.int64)
        if batch.drafts is not None:
            width = batch.drafts.tokens.shape[1] + 1
            _, deep = batch.drafts.lineage(width)
            own = np.arange(width) <= batch.drafts.counts[:, None]
            depths = (deep * own).max(1)
        drafting = self.core._speculation._seconds
        lines, accepted = result.tokens.entries, result.tokens.counts - 1
        return Step(seconds, drafting, tokens, depths[lines], accepted)


def chats(tokenizer: Tokenizer, count: int, *, copying: bool) -> list[list[int]]:
    """Prompts; those that copy hold the model's own first answer to the same question."""
    questions = [
        QUESTIONS[0 if copying else i // len(FUNCTIONS) % len(QUESTIONS)].format(
            FUNCTIONS[i % len(FUNCTIONS)]
        )
        for i in range(count)
    ]
    turns = [[question] for question in questions]
    if copying:
        drive = Drive(make_core())
        ids = [drive.submit(Job(_prompt(tokenizer, turn), 160)) for turn in turns]
        drive.finish()
        for turn, i in zip(turns, ids, strict=True):
            answer = tokenizer.decode(drive.tokens[i], skip_special_tokens=False)
            turn += [answer.partition("<|im_end|>")[0], turn[0]]
    return [_prompt(tokenizer, turn) for turn in turns]


def _prompt(tokenizer: Tokenizer, turns: Sequence[str]) -> list[int]:
    text = "".join(
        f"<|im_start|>{('user', 'assistant')[i % 2]}\n{turn}<|im_end|>\n"
        for i, turn in enumerate(turns)
    )
    ids: list[int] = tokenizer.encode(text + "<|im_start|>assistant\n").ids
    return ids


def _some(prompts: Sequence[Sequence[int]], batch: int, tokens: int) -> list[Job]:
    """So many jobs that a batch is full for an answer at least; they end one after the other."""
    lengths = [tokens * percent // 100 for percent in (70, 130, 90, 110, 100)]
    wanted = max(6, 2 * batch)
    return [Job(prompts[i % len(prompts)], lengths[i % len(lengths)]) for i in range(wanted)]


def compare(
    drafter: str, controller: StrategyChoice, jobs: list[Job], batch: int, rounds: int
) -> Compared:
    """The jobs, ``batch`` at a time, with drafts and without."""
    none, ours = [], []
    # Where an engine's memory lies makes a difference of some percent, so each is either side.
    engines = [Observed(controller, batch) for _ in range(2)]
    for number in range(2 * rounds):
        without, with_drafts = engines if number % 2 else engines[::-1]
        without.draft_with()
        with_drafts.draft_with(drafter)
        by_turns(without, with_drafts, jobs[:batch])
        found = by_turns(without, with_drafts, jobs)
        none += found[0]
        ours += found[1]
    if any(engine.core.stats.faults for engine in engines):
        raise RuntimeError(f"{drafter} failed")
    return Compared(calm(none), calm(ours))


def by_turns(none: Observed, ours: Observed, jobs: list[Job]) -> tuple[list[Step], list[Step]]:
    """The same jobs on both sides, a step here and a step there.

    Raises:
        RuntimeError: they gave different tokens.
    """
    runs = [none.steps(jobs), ours.steps(jobs)]
    steps: tuple[list[Step], list[Step]] = ([], [])
    answers: dict[int, list[list[int]]] = {}
    turn = 0
    while len(answers) < len(runs):
        turn += 1
        for side in (0, 1) if turn % 2 else (1, 0):
            if side in answers:
                continue
            try:
                step = next(runs[side])
            except StopIteration as end:
                answers[side] = end.value
                continue
            if step is not None:
                steps[side].append(step)
    if answers[0] != answers[1]:
        raise RuntimeError("drafts changed the tokens")
    return steps


def main() -> int:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--drafters", nargs="*", default=list(DRAFTS))
    parser.add_argument("--batches", nargs="*", type=int, default=[1, 16])
    parser.add_argument("--sweep", nargs="*", type=int, default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=120)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--strict", action="store_true")
    args = parser.parse_args()
    where = report.machine()
    tokenizer = Tokenizer.from_file(str(folder() / "tokenizer.json"))
    sets = {name: chats(tokenizer, 16, copying=name == "copying") for name in ("chat", "copying")}
    findings, details = [], []
    for drafter in args.drafters:
        fixed = StrategyChoice("fixed", {"drafts": DRAFTS[drafter]})
        for name, prompts in sets.items():
            for batch in args.batches:
                some = _some(prompts, batch, args.tokens)
                found = compare(drafter, fixed, some, batch, args.rounds)
                predicted = found.predict()
                what = f"{drafter}, {name}, batch {batch}"
                details.append(
                    {
                        "what": what,
                        "acceptance": found.acceptance,
                        "drafts": found.drafts,
                        "tokens_per_step": found.tokens_per_step,
                        "speed_up": found.speed_up,
                        **predicted,
                    }
                )
                print(details[-1], file=sys.stderr, flush=True)
                findings += [
                    report.Finding(
                        f"{what}: tokens/step",
                        "tokens",
                        found.tokens_per_step,
                        predicted["predicted_tokens_per_step"],
                        "formula",
                    ),
                    report.Finding(
                        f"{what}: speed-up",
                        "x",
                        found.speed_up,
                        predicted["predicted_speed_up"],
                        "formula",
                    ),
                ]
                copies = drafter == "ngram" and name == "copying" and batch == 1
                if copies:
                    findings.append(
                        report.Finding(what, "x", found.speed_up, 1.0, "no drafts", LEAST_COPYING)
                    )
        for batch in args.sweep:
            some = _some(sets["chat"], batch, args.tokens)
            found = compare(drafter, StrategyChoice("adaptive"), some, batch, args.rounds)
            findings.append(
                report.Finding(
                    f"{drafter}, adaptive, chat, batch {batch}",
                    "x",
                    found.speed_up,
                    1.0,
                    "no drafts",
                    LEAST_ADAPTIVE,
                )
            )
            print(findings[-1], file=sys.stderr, flush=True)
    return report.publish(
        *("Speculation", where, findings), as_json=args.json, strict=args.strict, details=details
    )


if __name__ == "__main__":
    sys.exit(main())
