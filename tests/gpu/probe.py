"""What each kernel of an 8B decode step takes in a CUDA graph, beside others that do the same.

    make gpu-probe            about 2 minutes; or, where there is no make:
    . tests/gpu/kit/setup.sh; python3 tests/gpu/probe.py [BATCH,...] | tee out/probe.log
    FIRST_DEVICE=cpu python tests/gpu/probe.py     the rehearsal: each row on a tiny shape

``--parts attention,small`` measures these alone, ``--seconds`` sets the time for all of them. With
``OUT`` set the rows are in ``probe.json`` there as well.

Attention: our Triton kernel, FlashInfer's FlashAttention 2 on tensor cores, and XQA if it is
compiled, over slices of a block-major pool. Products: torch's choice, the best of cuBLASLt's
proposals, tinygemm2 for few lines, each over copies of a matrix that do not fit the chip's cache.
``tests/gpu/probing`` has the parts. A process of its own measures them, and a new one the rest if a
kernel takes the device down: see ``processes.py``. Each answer is compared with the twin's in torch
before its kernel is timed. All in microseconds; where the memory's speed counts also the bytes
read, and their share of what a chip's kernels get, which is 3.97 TB/s on an H200.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.gpu.probing.processes import Processes
from tests.gpu.probing.shares import SHARES

_SECONDS = 110.0
_COMPILERS = 12
_PATIENCE = 10
"""A busy CPU is given more."""


def main() -> int:
    """Every part, whatever fails before it; 1 if a row failed or differs from its twin."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("batches", nargs="?", default="", metavar="BATCH,...")
    parser.add_argument("--parts", default=",".join(SHARES))
    parser.add_argument("--seconds", type=float, default=_SECONDS)
    device = os.environ.get("FIRST_DEVICE", "cuda")
    # The interpreter compiles nothing.
    threads = 0 if device == "cpu" else _COMPILERS
    parser.add_argument("--compilers", type=int, default=threads, help="0 compiles row by row")
    for of_a_child in ("--child", "--goes-on"):
        parser.add_argument(of_a_child, action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--singly", default="", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    parts, out = asked.parts.split(","), os.environ.get("OUT", "")
    if unknown := set(parts) - set(SHARES):
        parser.error(f"no such parts: {', '.join(sorted(unknown))}")
    if asked.child:
        from tests.gpu.probing.parts import measure

        batches = tuple(int(n) for n in asked.batches.split(",") if n)
        singly = asked.singly.split(",")
        return measure(
            device, Path(out), batches, asked.compilers, parts, singly, asked.seconds,
            goes_on=asked.goes_on,
        )  # fmt: skip
    # So that the process that has the device is ended with this one.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    patience = _PATIENCE if device == "cpu" else 1
    command = [sys.executable, *sys.orig_argv[1:]]
    with tempfile.TemporaryDirectory() as nowhere:
        os.environ["OUT"] = out or nowhere
        processes = Processes(command, Path(out or nowhere), patience)
        return processes.measure(parts, asked.seconds * patience)


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # a thread that is still compiling would be waited for
