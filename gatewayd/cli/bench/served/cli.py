"""``gatewayd bench serve``: benchmark a complete server."""

from __future__ import annotations

import asyncio
from pathlib import Path

import typer

from gatewayd.cli.bench import options, report
from gatewayd.cli.bench.load import LoadTarget
from gatewayd.cli.bench.progress import Stages
from gatewayd.cli.bench.run import BenchRun, progress_line
from gatewayd.cli.bench.served.daemon import DaemonError, serving
from gatewayd.cli.bench.served.measure import ServedOutcome, level_rows
from gatewayd.cli.bench.served.measure import run as run_workloads
from gatewayd.cli.bench.served.workloads import WORKLOADS, words_of
from gatewayd.cli.client.api import ApiClient, ApiError
from gatewayd.cli.common import fail
from gatewayd.cli.shared_options import with_option_groups

_SAID = ("output_tokens_per_second", "ttft_p50_ms", "tpot_p50_ms")


@with_option_groups(engine=options.EngineOptions, output=options.OutputOptions)
def serve(engine: options.EngineOptions, output: options.OutputOptions) -> None:
    """Benchmark a complete server: start a daemon, load it over HTTP, stop it.

    Random prompts of 512 tokens, greedy streamed answers of 128 tokens, random weights; 1, 32 and
    256 concurrent requests, and 10 requests per second. Results are compared with vLLM on one H200.
    """
    names = options.chosen(engine.only, list(WORKLOADS))
    with (
        options.measured(engine.model, engine.device, engine.settings) as found,
        Stages() as stages,
    ):
        try:
            words = words_of(found.folder)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--model") from None
        run = BenchRun(found, engine.device, found.arithmetic, engine.scale)
        outcomes: list[ServedOutcome] = []
        problem = ""
        try:
            asyncio.run(_measure(run, names, words, stages, outcomes, output.out))
        except DaemonError as error:
            problem = str(error)
        except ApiError as error:
            problem = f"cannot benchmark the daemon: {error.message} ({error.code})"
    # Completed workloads are shown even if a later one has failed.
    if outcomes or not problem:
        run.show(output.form, "served", level_rows(outcomes))
    failures = report.error_lines([outcome.level for outcome in outcomes])
    if failures or problem:
        fail("; ".join([*failures, *([problem] if problem else [])]))


async def _measure(
    run: BenchRun,
    names: list[str],
    words: list[str],
    stages: Stages,
    outcomes: list[ServedOutcome],
    out: Path | None,
) -> None:
    def load(stage: str) -> None:
        stages.advance(stage, 0.0, 1.0)

    async with serving(run.subject.environment(), load) as url, ApiClient(url) as client:
        target = LoadTarget(client, (await client.models())[0])
        async for outcome in run_workloads(target, names, words, run.scale, stages.advance):
            outcomes.append(outcome)
            run.workloads.append(outcome.as_document())
            run.comparisons += outcome.comparisons()
            run.write(out)
            stages.print_line(progress_line(outcome.workload, outcome.figures(), _SAID))
