"""``gatewayd bench``: benchmark a running server."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer
from rich.console import Console

from gatewayd.cli.bench import report
from gatewayd.cli.bench.load import LoadTarget, Stop
from gatewayd.cli.bench.plot import NoPlot, draw
from gatewayd.cli.bench.progress import BenchProgress
from gatewayd.cli.bench.stats import Level
from gatewayd.cli.bench.sweep import LoadLevel, SweepPlan, measure
from gatewayd.cli.bench.workload import Item, RequestShape, corpus_for, from_file, synthetic
from gatewayd.cli.client.api import ApiClient, ApiError


class BenchEndpoint(StrEnum):
    """API endpoint to send requests to."""

    COMPLETIONS = "completions"
    CHAT = "chat"


def bench(
    ctx: typer.Context,
    url: Annotated[
        str, typer.Option(help="Base URL of any OpenAI-compatible server.")
    ] = "http://127.0.0.1:8000",
    model: Annotated[
        str | None, typer.Option(help="Model to request. Default: the first that the server lists.")
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="OPENAI_API_KEY", help="API key, sent as a bearer token.")
    ] = None,
    concurrency: Annotated[
        str | None,
        typer.Option(
            metavar="N[,N...]",
            help="Closed loop: numbers of concurrent requests to measure. Default: 1,8,32.",
        ),
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option(
            metavar="R[,R...]",
            help="Open loop: request rates per second to measure (Poisson arrivals).",
        ),
    ] = None,
    requests: Annotated[
        int | None,
        typer.Option(min=1, help="Requests per load level. Default: 4 x N, at least 32."),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            min=0.1, help="Duration of each load level in seconds, instead of --requests."
        ),
    ] = None,
    warmup: Annotated[
        int, typer.Option(min=0, help="Warm-up requests per load level, which are not measured.")
    ] = 8,
    endpoint: Annotated[
        BenchEndpoint, typer.Option(help="API endpoint to send requests to.")
    ] = BenchEndpoint.COMPLETIONS,
    prompt_tokens: Annotated[
        int, typer.Option(min=1, help="Tokens per prompt, not counting the shared prefix.")
    ] = 64,
    output_tokens: Annotated[
        int, typer.Option(min=1, help="Tokens to generate per request.")
    ] = 128,
    shared_prefix_tokens: Annotated[
        int, typer.Option(min=0, help="Length in tokens of a prefix that all prompts share.")
    ] = 0,
    spread: Annotated[
        float,
        typer.Option(
            min=0, max=3, help="Sigma of log-normal prompt and output lengths; 0: fixed lengths."
        ),
    ] = 0.0,
    dataset: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="JSON Lines file with a `prompt` or `messages` per line.",
        ),
    ] = None,
    temperature: Annotated[
        float, typer.Option(min=0, max=2, help="Sampling temperature; 0 is greedy decoding.")
    ] = 0.0,
    ignore_eos: Annotated[
        bool | None,
        typer.Option(
            "--ignore-eos/--no-ignore-eos",
            help="Generate to the full output length. Default: yes; no with --dataset.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed of prompts and arrival times.")] = 0,
    timeout: Annotated[
        float, typer.Option(min=1, help="Timeout of one request in seconds.")
    ] = 600.0,
    keep_alive: Annotated[
        bool, typer.Option(help="Reuse HTTP connections; llama.cpp's server needs --no-keep-alive.")
    ] = True,
    json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Benchmark a server: TTFT, TPOT, ITL and E2E percentiles, throughput, errors by code."""
    # typer also calls this before a subcommand.
    if ctx.invoked_subcommand is not None:
        _refuse_options(ctx)
        return
    loads = [
        *_loads("concurrency", concurrency if concurrency or rate else "1,8,32"),
        *_loads("rate", rate),
    ]
    chat = endpoint is BenchEndpoint.CHAT
    shape = RequestShape(prompt_tokens, output_tokens, shared_prefix_tokens, spread)
    try:
        listed = from_file(dataset, output_tokens, chat=chat) if dataset else None
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--dataset") from None
    if requests is None and seconds is None:
        requests = max(32, *(4 * int(load.value) for load in loads))
    plan = SweepPlan(loads, Stop(requests, seconds), warmup, seed)

    async def run() -> tuple[str, list[Level]]:
        async with ApiClient(
            url, api_key=api_key, timeout_seconds=timeout, keep_alive=keep_alive
        ) as client:
            name = model or (await client.models())[0]
            items: Iterator[Item]
            if listed is not None:
                # A short file is repeated; repeated prompts may hit the prefix cache.
                items = itertools.cycle(listed)
            else:
                items = synthetic(await corpus_for(client, name, as_text=chat), shape, seed)
            eos = ignore_eos if ignore_eos is not None else dataset is None
            target = LoadTarget(client, name, chat=chat, ignore_eos=eos, temperature=temperature)
            with BenchProgress(plan) as progress:
                return name, await measure(target, items, plan, progress.advance)

    try:
        name, levels = asyncio.run(run())
    except ApiError as error:
        typer.echo(f"cannot benchmark {url}: {error.message} ({error.code})", err=True)
        raise typer.Exit(1) from None
    workload = {"endpoint": endpoint.value, "seed": seed, "dataset": dataset and str(dataset)}
    document = {
        "url": url,
        "model": name,
        "workload": workload | (msgspec.to_builtins(shape) if dataset is None else {}),
        "levels": [report.as_document(level) for level in levels],
    }
    if json:
        typer.echo(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())
    else:
        _show(levels)
    if not any(level.succeeded for level in levels):
        raise typer.Exit(1)


def _refuse_options(ctx: typer.Context) -> None:
    """Refuse options before the name of a subcommand, where they would have no effect."""
    for parameter in ctx.command.params:
        source = ctx.get_parameter_source(parameter.name or "")
        if source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(
                f"it is for `gatewayd bench` alone; {ctx.invoked_subcommand} does not accept it",
                param_hint=parameter.opts[0],
            )


def _loads(kind: Literal["concurrency", "rate"], text: str | None) -> list[LoadLevel]:
    """Parse load levels: ``_loads("rate", "0.5,2")`` has two."""
    values = []
    for word in (text or "").split(",") if text else []:
        try:
            value = float(int(word)) if kind == "concurrency" else float(word)
        except ValueError:
            # Refused below, like any value out of bounds.
            value = 0.0
        if not 0 < value < float("inf"):
            wanted = "a whole number above 0" if kind == "concurrency" else "a number above 0"
            raise typer.BadParameter(f"{word!r} is not {wanted}", param_hint=f"--{kind}")
        values.append(LoadLevel(kind, value))
    return values


def _show(levels: list[Level]) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=140)
    if len(levels) == 1:
        console.print(report.detail_table(levels[0]))
    else:
        console.print(report.sweep_table(levels))
        if sum(level.succeeded > 0 for level in levels) > 1:
            try:
                plot = draw(levels, console.width, colorless=console.color_system is None)
            except NoPlot as error:
                plot = str(error)
            typer.echo(plot, color=True)
    for line in report.error_lines(levels):
        console.print(f"errors at {line}", style="red", markup=False)
