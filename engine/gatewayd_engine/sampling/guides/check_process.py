"""Grammar checks in a separate process, run by ``python -m``.

A grammar that exhausts memory or never finishes compiling terminates this process instead of an
engine. The first frame has the configuration; each later frame is a grammar, answered by a verdict.
Does not import torch.
"""

from __future__ import annotations

import errno
import os
import random
import resource
import signal
import struct
import sys
import time
from typing import BinaryIO, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from gatewayd_engine.process.config import StrategyChoice
from gatewayd_hooks.guiding import (
    Grammar,
    GrammarRefused,
    GuideFailed,
    GuideSpec,
    GuideStrategy,
)
from gatewayd_hooks.host.catalog import Catalog
from gatewayd_hooks.host.errors import describe_error
from gatewayd_hooks.host.loading import PluginHost
from gatewayd_hooks.resources import EngineResources
from gatewayd_hooks.strategy import Kind

LENGTH: Final = struct.Struct("<I")
_NICENESS = 5
_WALKS, _WALK_TOKENS = 3, 12
_WALK_SECONDS = 0.2
_NO_THREAD = "can't start new thread"
_SHORTAGES = (errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE)


class CheckConfig(msgspec.Struct, frozen=True):
    """Guide that compiles grammars, and limits on each of them."""

    guide: StrategyChoice
    folder: str
    """Folder of the checkpoint, for its tokenizer."""
    vocab_size: int
    eos_token_ids: list[int]
    seconds: float
    """Time limit of a grammar, after which the process is terminated."""
    memory_bytes: int
    """Memory limit in addition to the process's memory at its start."""


class Verdict(msgspec.Struct, frozen=True, array_like=True):
    """Result for the configuration, or for a grammar."""

    refusal: str = ""
    """Reason for a refusal; empty if it is accepted."""
    is_fault: bool = False
    """Whether the guide raised an unexpected exception."""
    note: str = ""
    """Message for the operator, in the first answer only."""
    is_unconfined: bool = False
    """Whether entering the sandbox failed; the process then compiles nothing."""


def encode(message: CheckConfig | GuideSpec | Verdict) -> bytes:
    """Encode a frame: four bytes of length, then msgpack."""
    data = msgspec.msgpack.encode(message)
    return LENGTH.pack(len(data)) + data


def main(note: str = "") -> int:
    """Serve until standard input ends.

    Args:
        note: message for the operator about this process.
    """
    os.nice(_NICENESS)  # at once: a replacement process starts while the engine computes
    # An interrupt from a terminal reaches the whole process group; this one ends with its input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Output that plugins print must not mix with the frames.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    first = _read(sys.stdin.buffer)
    if first is None:
        return 0
    config = msgspec.msgpack.decode(first, type=CheckConfig)
    try:
        guide = _open(config)
    except Exception as error:
        if _is_shortage(error):
            raise  # not a refusal, on which the daemon would start an unconfined process
        _write(answers, Verdict(describe_error(error), is_fault=True))
        return 1
    _write(answers, Verdict(note=note))
    mask = np.zeros(-(-config.vocab_size // 32), np.int32)
    # After `open`, so that the guide itself does not count.
    limit = _vm_bytes() + config.memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    # Exceeding a limit is expected, and must not leave core files.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # The default action terminates the process, whatever library is running.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    while (frame := _read(sys.stdin.buffer)) is not None:
        spec = msgspec.msgpack.decode(frame, type=GuideSpec)
        signal.setitimer(signal.ITIMER_REAL, config.seconds)
        verdict = _check(guide, spec, mask)
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        _write(answers, verdict)
    return 0


def refuse(why: str) -> int:
    """Answer the configuration with a refusal, because the sandbox could not be entered."""
    if _read(sys.stdin.buffer) is not None:
        _write(sys.stdout.buffer, Verdict(why, is_unconfined=True))
    return 1


def _open(config: CheckConfig) -> GuideStrategy:
    host = PluginHost(Catalog.installed())
    guide: GuideStrategy = host.strategy(Kind.GUIDE, config.guide.name, config.guide.settings)
    guide.open(
        EngineResources(
            num_pages=1,
            page_size=1,
            max_running=1,
            max_batch_tokens=1,
            max_model_len=1,
            vocab_size=config.vocab_size,
            eos_token_ids=tuple(config.eos_token_ids),
            device="cpu",
            slots=1,
            folder=config.folder,
        )
    )
    return guide


def _is_shortage(error: BaseException | None) -> bool:
    """Whether memory, threads or descriptors ran out: transient, and possibly caused by clients."""
    while error is not None:
        if isinstance(error, MemoryError) or str(error) == _NO_THREAD:
            return True
        if isinstance(error, OSError) and error.errno in _SHORTAGES:
            return True
        error = error.__cause__ or error.__context__
    return False


def _check(guide: GuideStrategy, spec: GuideSpec, mask: NDArray[np.int32]) -> Verdict:
    try:
        _walk(guide.compile(spec), mask)
    except (GrammarRefused, GuideFailed) as refused:
        return Verdict(str(refused))
    except (MemoryError, RecursionError) as error:
        return Verdict(f"it needs too much memory to compile ({type(error).__name__})")
    except Exception as error:  # noqa: BLE001 - a plugin may raise anything
        if str(error) == _NO_THREAD:
            return Verdict("it needs too much memory to compile (no room for a thread)")
        return Verdict(describe_error(error), is_fault=True)
    return Verdict()


def _walk(grammar: Grammar, mask: NDArray[np.int32]) -> None:
    """Generate some random tokens, to exercise work that a guide defers until then.

    Raises:
        GuideFailed: the guide cannot continue.
    """
    # A fixed seed, so that a grammar gets the same verdict each time.
    draw, deadline = random.Random(0), time.monotonic() + _WALK_SECONDS
    for _ in range(_WALKS):
        matcher = grammar.start()
        for _ in range(_WALK_TOKENS):
            matcher.fill(mask)
            allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
            matcher.accept([int(draw.choice(allowed))])
            if time.monotonic() > deadline:
                return


def _vm_bytes() -> int:
    """Return the address space in use, in bytes."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def _read(source: BinaryIO) -> bytes | None:
    header = source.read(LENGTH.size)
    if len(header) < LENGTH.size:
        return None
    return source.read(LENGTH.unpack(header)[0])


def _write(out: BinaryIO, verdict: Verdict) -> None:
    out.write(encode(verdict))
    out.flush()


if __name__ == "__main__":
    sys.exit(main())
