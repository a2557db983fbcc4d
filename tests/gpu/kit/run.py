"""``make gpu-first``, ``make gpu`` and ``make gpu-all``: a plan's steps, and a summary at the end.

    python3 tests/gpu/kit first|gpu|all

Logs, documents and ``summary.txt`` are in ``OUT``. ``FIRST_DEVICE=cpu`` rehearses without a GPU,
``FIRST_SECONDS`` is another limit for all steps, ``FIRST_ONLY="nano 8b:serve"`` runs some.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tests.gpu.kit.environment import ROOT, environment
from tests.gpu.kit.plans import PLANS, words
from tests.gpu.kit.steps import Steps
from tests.gpu.kit.summary import summary

_FIGURES = ("offline.json", "serve.json", "fp8.json")
_TESTED = ("parity.log", "more.log", "tests.log")
_ON_CPU = 3
_WARNED = ("env.log", "nano.log", "bench.log")
_STALE = (*_FIGURES, *_TESTED, *_WARNED)


def run(name: str, given: Mapping[str, str]) -> int:
    """Run a plan.

    Args:
        name: of the plan.
        given: the environment, with ``OUT`` and ``FIRST_*``.

    Returns:
        0 if each step was run and succeeded.
    """
    began = time.monotonic()
    plan, device = PLANS[name], given.get("FIRST_DEVICE", "cuda")
    out = Path(given.get("OUT", "out")).absolute()
    out.mkdir(parents=True, exist_ok=True)
    for stale in _STALE:
        (out / stale).unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        variables = {
            **given,
            **environment(),
            "XDG_STATE_HOME": f"{temporary}/state",
            "TMPDIR": temporary,
            "CAPTURE": "",
        }
        # Limits are for a GPU's machine; two busy cores take longer.
        patience = _ON_CPU if device == "cpu" else 1
        made = words(device, str(out), temporary, given.get("FIRST_MODEL", ""))
        listed = [replace(one, seconds=patience * one.seconds) for one in plan.steps(made)]
        seconds = float(given.get("FIRST_SECONDS") or plan.seconds)
        # The kit may have been unpacked just now.
        steps = Steps(seconds - (time.monotonic() - began), out, variables, memory_used)
        try:
            steps.run(listed, given.get("FIRST_ONLY", "").split())
        finally:
            folders = (out, Path(temporary))
            text = summary(
                steps.results,
                steps.elapsed,
                [folder / file for file in _FIGURES for folder in folders],
                [out / file for file in _TESTED],
                [out / file for file in _WARNED],
            )
            (out / "summary.txt").write_text(text, "utf-8")
            print(text, end="", flush=True)
    return 0 if all(one.status == 0 for one in steps.results) else 1


def memory_used() -> str:
    """Of the GPU, as its driver says it; empty without one."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.partition("\n")[0]


def main() -> int:
    """See above."""
    if len(sys.argv) != 2 or sys.argv[1] not in PLANS:
        print(__doc__, file=sys.stderr)
        return 2
    # Ended from outside, it still ends its step and says what there is.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    os.chdir(ROOT)
    try:
        return run(sys.argv[1], os.environ)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
