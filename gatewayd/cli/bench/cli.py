"""``gatewayd bench``: options in, table, plot or JSON out."""

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
    """Where requests go."""

    COMPLETIONS = "completions"
    CHAT = "chat"


def bench(
    ctx: typer.Context,
    url: Annotated[
        str, typer.Option(help="The server, any OpenAI-compatible one.")
    ] = "http://127.0.0.1:8000",
    model: Annotated[str | None, typer.Option(help="Its model; the first it lists.")] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="OPENAI_API_KEY", help="Sent as a bearer token.")
    ] = None,
    concurrency: Annotated[
        str | None,
        typer.Option(metavar="N[,N...]", help="Closed loop: requests in flight. Default 1,8,32."),
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option(metavar="R[,R...]", help="Open loop: Poisson arrivals per second."),
    ] = None,
    requests: Annotated[
        int | None, typer.Option(min=1, help="Requests per level. Default 4 x N, at least 32.")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(min=0.1, help="Send for so long at each level instead.")
    ] = None,
    warmup: Annotated[int, typer.Option(min=0, help="Unmeasured requests per level.")] = 8,
    endpoint: Annotated[
        BenchEndpoint, typer.Option(help="Where requests go.")
    ] = BenchEndpoint.COMPLETIONS,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Own tokens of each prompt.")] = 64,
    output_tokens: Annotated[int, typer.Option(min=1, help="Tokens to generate.")] = 128,
    shared_prefix_tokens: Annotated[
        int, typer.Option(min=0, help="Tokens in front that all prompts share.")
    ] = 0,
    spread: Annotated[
        float, typer.Option(min=0, max=3, help="Sigma of log-normal lengths; 0 is fixed.")
    ] = 0.0,
    dataset: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="JSON lines: prompt or messages."),
    ] = None,
    temperature: Annotated[float, typer.Option(min=0, max=2, help="0 is greedy.")] = 0.0,
    ignore_eos: Annotated[
        bool | None,
        typer.Option(
            "--ignore-eos/--no-ignore-eos",
            help="Answers as long as asked for. Default: yes, with a dataset no.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of prompts and arrivals.")] = 0,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds for one request.")] = 600.0,
    keep_alive: Annotated[
        bool, typer.Option(help="Use connections again; llama.cpp's server needs --no-keep-alive.")
    ] = True,
    json: Annotated[bool, typer.Option("--json", help="Print a document instead.")] = False,
) -> None:
    """Measure a server: TTFT, TPOT, ITL and E2E percentiles, throughput, errors by code."""
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
        typer.echo(f"{url} cannot be measured: {error.message} ({error.code})", err=True)
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
    """What stands before the name of a subcommand would change nothing."""
    for parameter in ctx.command.params:
        source = ctx.get_parameter_source(parameter.name or "")
        if source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(
                f"it is of `gatewayd bench` alone; {ctx.invoked_subcommand} has options of its own",
                param_hint=parameter.opts[0],
            )


def _loads(kind: Literal["concurrency", "rate"], text: str | None) -> list[LoadLevel]:
    """``_loads("rate", "0.5,2")`` is two loads."""
    values = []
    for word in (text or "").split(",") if text else []:
        try:
            value = float(int(word)) if kind == "concurrency" else float(word)
        except ValueError:
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
