"""Fake engine process without a model: real frames, free tokens, faults on demand.

``python fake_engine.py --fd N`` is started as the real engine is. The tokens of a prompt are
``token_at(prompt, k)``. The environment shapes it:

- ``FAKE_FAULTS``: comma-separated ``name@step`` with ``exit``, ``kill``, ``hang``, ``garbage``,
  ``short`` (columns that contradict each other), ``stranger`` (a token for an unknown sequence),
  ``nan`` (the first sequence fails), ``stall`` (it speaks and computes no more); or ``load_exit``,
  ``load_fatal``, ``load_hang``, ``version``, ``hold`` (nothing is ever admitted), ``die_admitting``
  (it exits when a prompt begins with token 666).
- ``FAKE_LIVES``: ``path:n``; the faults act only in the first ``n`` lives, counted in that file.
- ``FAKE_STEP_MS``, ``FAKE_LOAD_MS``: how long a step and loading take.
- ``FAKE_MAX_RUNNING``, ``FAKE_VOCAB``, ``FAKE_MAX_LEN``: what it pretends to be.
"""

from __future__ import annotations

import os
import signal
import struct
import sys
import time
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gatewayd_engine.process.engine_stats import EngineStats
from gatewayd_engine.process.frames import EngineSocket
from gatewayd_engine.process.messages import (
    ERROR,
    LENGTH,
    PROTOCOL_VERSION,
    Abort,
    Admitted,
    Command,
    EngineReady,
    Fatal,
    Finished,
    Loading,
    ModelInfo,
    Shutdown,
    StepOutput,
    Submit,
    TokenLogprobs,
)
from gatewayd_engine.process.time_causes import Cause

FIRST_TOKEN = 300  # past the control tokens and single bytes of the embedded tokenizer
PAGE_SIZE = 16
NUM_PAGES = 4096


def token_at(prompt: list[int], index: int, vocab: int) -> int:
    """The ``index``-th token that follows a prompt."""
    return FIRST_TOKEN + (sum(prompt) * 31 + index * 7) % (vocab - FIRST_TOKEN)


@dataclass(slots=True)
class Running:
    """A sequence that is being generated."""

    sequence: int
    prompt: list[int]
    max_tokens: int
    logprobs: bool
    made: int = 0


def ended_columns(ended: list[tuple[int, Running | None]]) -> dict[str, Any]:
    """Who has ended: time was free, and prompts were computed by whoever ran."""
    prompts = [0 if one is None else len(one.prompt) for _, one in ended]
    made = [0 if one is None else one.made for _, one in ended]
    return {
        "ended": array("q", [sequence for sequence, _ in ended]).tobytes(),
        "spent": array("d", [0.0] * len(ended)).tobytes(),
        "counts": array("i", [*prompts, *[0] * len(ended), *made]).tobytes(),
    }


def chunk_columns(chunks: list[tuple[int, int]]) -> dict[str, Any]:
    """Whose prompts were computed, and how long they are."""
    return {
        "moved": array("q", [sequence for sequence, _ in chunks]).tobytes(),
        "causes": bytes([Cause.PREFILL] * len(chunks)),
        "shares": array("f", [0.0] * len(chunks)).tobytes(),
        "reached": array("i", [length for _, length in chunks]).tobytes(),
    }


@dataclass(slots=True)
class FakeEngine:
    """The main loop of an engine, without the engine."""

    stream: EngineSocket
    faults: dict[str, int]
    step_seconds: float
    max_running: int
    vocab: int
    max_len: int
    fd: int
    step: int = 0
    computed: int = 0
    waiting: list[tuple[Submit, float]] = field(default_factory=list)
    running: dict[int, Running] = field(default_factory=dict)
    shutdown: bool = False

    def load(self, seconds: float) -> None:
        """Pretend to read weights."""
        config = self.stream.read_config()
        if ["kv_codec", "broken"] in config.quarantined:
            self.faults.pop("codec", None)
        self.stream.send(Loading("weights", 0.0))
        if "load_exit" in self.faults:
            os._exit(3)
        if "load_fatal" in self.faults:
            self.stream.send(Fatal("bad_model", "the model folder has no config.json"))
            os._exit(1)
        if "load_hang" in self.faults:
            time.sleep(3600)
        time.sleep(seconds)
        self.stream.send(Loading("weights", 1.0))
        version = PROTOCOL_VERSION + ("version" in self.faults)
        model = ModelInfo(
            architecture="FakeForCausalLM",
            num_parameters=1,
            dtype="float32",
            device="cpu",
            vocab_size=self.vocab,
            max_model_len=self.max_len,
            eos_token_ids=[0],
            num_pages=NUM_PAGES,
            page_size=PAGE_SIZE,
            max_running=self.max_running,
            max_batch_tokens=2048,
            strategies={"scheduler": "fcfs"},
        )
        self.stream.send(EngineReady(version, os.getpid(), model, seconds))

    def run(self) -> None:
        """Serve until told to stop."""
        while not self.shutdown:
            if self.step and self.step == self.faults.get("stall"):
                self.stream.send(StepOutput(self._stats()))
                time.sleep(0.1)
                continue
            if not self.running and not self.stream.wait_readable(0.5):
                self.stream.send(StepOutput(self._stats()))
            for command in self.stream.read_available():
                self._obey(command)
            output = self._make_step()
            if output.sequences or output.admitted or output.finished:
                if self.step_seconds:
                    time.sleep(self.step_seconds)
                self._maybe_fault()
                self.stream.send(output)

    def _obey(self, command: Command) -> None:
        if isinstance(command, Submit):
            self.waiting.append((command, time.monotonic()))
        elif isinstance(command, Abort):
            gone = set(command.sequences)
            ended = ended_columns([(i, self.running.get(i)) for i in command.sequences])
            self.running = {k: v for k, v in self.running.items() if k not in gone}
            self.stream.send(StepOutput(self._stats(), **ended))
            for submit, _ in self.waiting:
                submit.sequences[:] = [s for s in submit.sequences if s not in gone]
        elif isinstance(command, Shutdown):
            self.shutdown = True

    def _admit(self) -> list[Admitted]:
        admitted: list[Admitted] = []
        while self.waiting and len(self.running) < self.max_running and "hold" not in self.faults:
            submit, came = self.waiting.pop(0)
            prompt = array("i", submit.prompt).tolist()
            if "die_admitting" in self.faults and prompt[0] == 666:
                os._exit(4)
            waited = submit.queued_seconds + time.monotonic() - came
            for sequence in submit.sequences:
                wants = submit.params.logprobs is not None
                self.running[sequence] = Running(sequence, prompt, submit.params.max_tokens, wants)
                admitted.append(Admitted(sequence, 0, waited))
        return admitted

    def _make_step(self) -> StepOutput:
        admitted = self._admit()
        if not self.running and not admitted:
            return StepOutput(self._stats())
        self.step += 1
        prompts = {of: one.prompt for of, one in self.running.items()}
        sequences, tokens = array("q"), array("i")
        finished: list[Finished] = []
        logprobs: list[TokenLogprobs] = []
        for row in self.running.values():
            token = token_at(row.prompt, row.made, self.vocab)
            row.made += 1
            sequences.append(row.sequence)
            tokens.append(token)
            if row.logprobs:
                logprobs.append(TokenLogprobs(row.sequence, token, -0.5, 1, [token], [-0.5]))
            if row.made >= row.max_tokens:
                finished.append(Finished(row.sequence, LENGTH))
        if self.faults.get("nan") == self.step:
            first = next(iter(self.running))
            finished = [f for f in finished if f.sequence != first]
            finished.append(Finished(first, ERROR, error=("numerical_error", "NaN logits")))
        if self.faults.get("stranger") == self.step:
            sequences.append(1 << 40)
            tokens.append(FIRST_TOKEN)
        if self.faults.get("short") == self.step:
            tokens.pop()
        over = [(end.sequence, self.running.pop(end.sequence, None)) for end in finished]
        self.computed += len(tokens)
        return StepOutput(
            stats=self._stats(),
            **chunk_columns([(one.sequence, len(prompts[one.sequence])) for one in admitted]),
            **ended_columns(over),
            sequences=sequences.tobytes(),
            tokens=tokens.tobytes(),
            admitted=admitted,
            finished=finished,
            logprobs=logprobs,
        )

    def _maybe_fault(self) -> None:
        due = {name for name, at in self.faults.items() if at == self.step}
        if "exit" in due:
            os._exit(3)
        if "kill" in due:
            os.kill(os.getpid(), signal.SIGKILL)
        if "codec" in due:
            self.stream.send(Fatal("StrategyFault", "kv_codec: no", ["kv_codec", "broken"]))
            os._exit(1)
        if "hang" in due:
            time.sleep(3600)
        if "garbage" in due:
            os.write(self.fd, struct.pack("<I", 5) + b"\xff\xfe\xfd\xfc\xfb")
            time.sleep(3600)

    def _stats(self) -> EngineStats:
        held = sum((len(r.prompt) + r.made) // PAGE_SIZE + 1 for r in self.running.values())
        return EngineStats(
            step=self.step,
            num_running=len(self.running),
            num_waiting=len(self.waiting),
            free_pages=NUM_PAGES - held,
            held_pages=held,
            computed_tokens=self.computed,
        )


def faults_of_this_life() -> dict[str, int]:
    """``FAKE_FAULTS``, unless this life is past those that have them."""
    if lives := os.environ.get("FAKE_LIVES"):
        path, _, count = lives.rpartition(":")
        with Path(path).open("ab") as file:
            file.write(b".")
        if Path(path).stat().st_size > int(count):
            return {}
    names = filter(None, os.environ.get("FAKE_FAULTS", "").split(","))
    return {name: int(at or 0) for name, _, at in (entry.partition("@") for entry in names)}


def main() -> None:
    """Take the socket and serve."""
    fd = int(sys.argv[sys.argv.index("--fd") + 1])

    def number(name: str, default: int) -> int:
        return int(os.environ.get(name, default))

    engine = FakeEngine(
        stream=EngineSocket.from_fd(fd),
        faults=faults_of_this_life(),
        step_seconds=number("FAKE_STEP_MS", 0) / 1000,
        max_running=number("FAKE_MAX_RUNNING", 256),
        vocab=number("FAKE_VOCAB", 4096),
        max_len=number("FAKE_MAX_LEN", 2048),
        fd=fd,
    )
    try:
        engine.load(number("FAKE_LOAD_MS", 0) / 1000)
        engine.run()
    except EOFError:
        return  # the daemon has gone


if __name__ == "__main__":
    main()
