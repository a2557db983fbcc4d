"""``gatewayd warmup``: make once what an engine's first start would wait for."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from gatewayd.bench.stages import Stages
from gatewayd.cli.common import AsJson, ConfigFile, console, fail, load_config, print_json
from gatewayd.config import Config
from gatewayd.sizes import sizes


def warmup(
    model: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="A checkpoint. Default: that of the configuration."),
    ] = None,
    device: Annotated[
        str | None, typer.Option(metavar="D", help="cpu, cuda, cuda:N or auto. Default: auto.")
    ] = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Compile the kernels of a model and capture its steps, then end.

    What is compiled stays on disk, so that the daemon's next start on this machine takes seconds.
    Run it with the daemon's configuration, as the daemon's user: after an installation, and when
    torch, Triton or FlashInfer have changed. On a CPU nothing is compiled.
    """
    given = {"model.path": None if model is None else str(model), "engine.device": device}
    flags = {key: value for key, value in given.items() if value is not None}
    loaded = load_config(config, flags).config
    with Stages() as stages:
        seconds, total = asyncio.run(_start_and_end(loaded, stages))
    caches = _caches() if sizes(loaded.engine).device != "cpu" else {}
    if as_json:
        print_json({"ready_seconds": total, "stages": seconds, "caches": caches})
        return
    for stage, taken in seconds.items():
        console().print(f"{taken:8.1f} s  {stage}")
    console().print(f"{total:8.1f} s  until ready")
    for name, folder in caches.items():
        console().print(f"{name} keeps what it compiles in {folder}", soft_wrap=True)


async def _start_and_end(config: Config, stages: Stages) -> tuple[dict[str, float], float]:
    """Seconds of each stage, and of all."""
    # Late: --help should not wait for the daemon's modules.
    from gatewayd.bench.offline.engine import EngineError, running

    began = time.perf_counter()
    seconds: dict[str, float] = {}
    last, since = "", began

    def watch(stage: str, fraction: float) -> None:
        nonlocal last, since
        now = time.perf_counter()
        if last:
            seconds[last] = seconds.get(last, 0.0) + now - since
        last, since = stage, now
        stages.advance(stage, fraction, 1.0)

    try:
        async with running(config, watch):
            watch("", 1.0)
            total = time.perf_counter() - began
    except EngineError as error:
        fail(str(error))
    return seconds, total


def _caches() -> dict[str, Any]:
    """Where compiled kernels are kept, by who compiles them."""
    home = Path.home()
    return {
        "Triton": os.environ.get("TRITON_CACHE_DIR", str(home / ".triton" / "cache")),
        "FlashInfer": str(
            Path(os.environ.get("FLASHINFER_WORKSPACE_BASE", home)) / ".cache" / "flashinfer"
        ),
    }
