"""The probe's parts, and the process that measures them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from gatewayd_engine.tuning.table import DeviceLost
from tests.gpu.probing.bench import Bench
from tests.gpu.probing.latents import latents
from tests.gpu.probing.packed import experts, packed
from tests.gpu.probing.probe import attention, products
from tests.gpu.probing.processes import LOST
from tests.gpu.probing.shares import SHARES
from tests.gpu.probing.small import fused, small
from tests.gpu.probing.verifying import verifying

_ROWS: dict[str, Callable[[Bench], None]] = {
    made.__name__: made
    for made in (attention, latents, small, fused, products, packed, verifying, experts)
}


def measure(
    device: str,
    out: Path,
    batches: tuple[int, ...],
    compilers: int,
    parts: Sequence[str],
    singly: Sequence[str],
    seconds: float,
    *,
    goes_on: bool,
) -> int:
    """Every part, whatever fails before it, but not after the device is lost.

    Args:
        device: see ``Bench``, as all up to the next.
        out: folder of ``probe.json``.
        batches: numbers of lines.
        compilers: threads.
        parts: in their order.
        singly: those of them that are compiled row by row.
        seconds: for all of them.
        goes_on: see ``Bench``.

    Returns:
        1 if a row failed or differs from its twin, 2 without a GPU, ``LOST``.
    """
    if device == "cuda" and not torch.cuda.is_available():
        print("there is no GPU: FIRST_DEVICE=cpu rehearses", file=sys.stderr)
        return 2
    torch.manual_seed(0)
    bench = Bench(device, out, batches, compilers, goes_on=goes_on)
    print(bench.machine, flush=True)
    whole, upto, began = sum(SHARES[name] for name in parts), 0.0, time.monotonic()
    with torch.inference_mode():
        for name in parts:
            # What one part leaves the next one has.
            upto += seconds * SHARES[name] / whole
            left = upto - (time.monotonic() - began)
            try:
                bench.part(name, _ROWS[name], left, singly=name in singly)
            except DeviceLost:
                return LOST
    return 1 if bench.failed else 0
