"""``gatewayd warmup``: compile and tune kernels ahead of an engine's first start."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from gatewayd.cli.bench.progress import Stages
from gatewayd.cli.common import AsJson, ConfigFile, console, fail, load_model_configs, print_json
from gatewayd.cli.warmup.table import table_of
from gatewayd.config.device_defaults import sizes
from gatewayd.config.tables import Config
from gatewayd.engines.replicas.launch import served_name
from gatewayd_engine.tuning.table import TableContents, load


def warmup(
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Checkpoint folder, GGUF file or hf:ORG/NAME. Default: all configured models.",
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            metavar="D", help="Device to compile for: cpu, cuda, cuda:N or auto. Default: auto."
        ),
    ] = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Compile and tune the kernels of models and capture CUDA graphs, then exit.

    What is compiled and measured stays on disk, so that the daemon's next start on this machine
    takes seconds. Run it with the daemon's configuration, as the daemon's user: after an
    installation, and when torch, Triton or FlashInfer have changed. On a CPU there is nothing to
    tune, and kernels are compiled in a second or two.
    """
    given = {"model.path": model, "engine.device": device}
    flags = {key: value for key, value in given.items() if value is not None}
    models = load_model_configs(config, flags)
    documents = {}
    # One after the other, as each takes the device's memory.
    for each in models:
        name = served_name(each.config)
        if len(models) > 1 and not as_json:
            console().print(f"{name}:", soft_wrap=True)
        where = f"{each.table}: " if len(models) > 1 else ""
        documents[name] = _warm_up(each.config, where, prints=not as_json)
    if as_json:
        several = [{"model": name, **document} for name, document in documents.items()]
        print_json({"models": several} if len(models) > 1 else documents[name])


def _warm_up(config: Config, where: str, *, prints: bool) -> dict[str, Any]:
    """Warm up one model; return what was measured."""
    with Stages() as stages:
        seconds, total, tuning_file = asyncio.run(_start_and_end(config, stages, where))
    caches = _caches() if sizes(config.engine).device != "cpu" else {}
    tuning = load(Path(tuning_file)) if tuning_file else None
    if prints:
        _print(seconds, total, caches, tuning_file, tuning)
    choices = None if tuning is None else {"file": tuning_file, **msgspec.to_builtins(tuning)}
    return {"ready_seconds": total, "stages": seconds, "caches": caches, "choices": choices}


def _print(
    seconds: Mapping[str, float],
    total: float,
    caches: Mapping[str, str],
    tuning_file: str,
    tuning: TableContents | None,
) -> None:
    if tuning is not None:
        console().print(table_of(tuning))
        for name in tuning.excluded:
            console().print(f"excluded, because it crashed an engine: {name}", soft_wrap=True)
        console().print(f"The choices are stored in {tuning_file}", soft_wrap=True)
    for stage, taken in seconds.items():
        console().print(f"{taken:8.1f} s  {stage}")
    console().print(f"{total:8.1f} s  until ready")
    for name, folder in caches.items():
        console().print(f"compiled kernels of {name} are cached in {folder}", soft_wrap=True)


async def _start_and_end(
    config: Config, stages: Stages, where: str
) -> tuple[dict[str, float], float, str]:
    """Start and stop an engine.

    Returns:
        Seconds of each stage, total seconds until ready, and the path of the tuning table.
    """
    # Imported late: --help should not wait for the daemon's modules.
    from gatewayd.cli.bench.offline.engine import EngineError, running

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
        async with running(config, watch) as (_, model):
            # Ends the last stage.
            watch("", 1.0)
            total = time.perf_counter() - began
    except EngineError as error:
        fail(f"{where}{error}")
    return seconds, total, model.tuning_file


def _caches() -> dict[str, Any]:
    """Return the cache folders of compiled kernels, by compiler."""
    home = Path.home()
    return {
        "Triton": os.environ.get("TRITON_CACHE_DIR", str(home / ".triton" / "cache")),
        "FlashInfer": str(
            Path(os.environ.get("FLASHINFER_WORKSPACE_BASE", home)) / ".cache" / "flashinfer"
        ),
    }
