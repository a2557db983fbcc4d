"""``gatewayd bench offline``: benchmark an engine without a server."""

from __future__ import annotations

import asyncio
from pathlib import Path

from gatewayd.cli.bench import options
from gatewayd.cli.bench.h200 import compare, reference
from gatewayd.cli.bench.offline.engine import EngineError, running
from gatewayd.cli.bench.offline.measure import (
    OfflineOutcome,
    engine_rows,
    measure,
    warm_start,
)
from gatewayd.cli.bench.offline.workloads import ON_REQUEST, WORKLOADS
from gatewayd.cli.bench.progress import Stages
from gatewayd.cli.bench.run import BenchRun, progress_line
from gatewayd.cli.common import fail
from gatewayd.cli.shared_options import with_option_groups
from gatewayd_hooks.host.loading import PluginError

_START = "start"
_SAID = ("output_tokens_per_second", "input_tokens_per_second", "seconds")


@with_option_groups(engine=options.EngineOptions, output=options.OutputOptions)
def offline(
    engine: options.EngineOptions,
    *,
    quantizer: options.QuantizerOption = None,
    kv_codec: options.KvCodec = None,
    others: options.Set = None,
    output: options.OutputOptions,
) -> None:
    """Benchmark an engine without a server: all requests of a workload are submitted at once.

    Token ids and lengths are fixed by seed, weights are random, decoding is greedy to a fixed
    length. Each workload follows a warm-up round with other prompts. At the end the engine is
    started once more to measure a warm start. Results are compared with vLLM on one H200.
    """
    names = options.chosen(engine.only, [*WORKLOADS, _START])
    if engine.only is None:
        names = [name for name in names if name not in ON_REQUEST]
    settings = {
        **engine.settings,
        "quantizer.strategy": quantizer,
        "kv_codec.strategy": kv_codec,
        "log.level": "warning",
        **options.pairs(others),
    }
    with options.measured(engine.model, engine.device, settings) as found, Stages() as stages:
        run = BenchRun(found, engine.device, engine.dtype.value, engine.scale)
        outcomes: list[OfflineOutcome] = []
        problem = ""
        try:
            asyncio.run(_measure(run, names, stages, outcomes, output.out))
        except (EngineError, PluginError) as error:
            problem = str(error)
    # Completed workloads are shown even if a later one has failed.
    if outcomes or not problem:
        run.show(output.form, "offline", engine_rows(outcomes))
    if problem:
        fail(problem)


async def _measure(
    run: BenchRun,
    names: list[str],
    stages: Stages,
    outcomes: list[OfflineOutcome],
    out: Path | None,
) -> None:
    def load(stage: str, fraction: float) -> None:
        stages.advance(stage, fraction, 1.0)

    config = run.subject.config()
    async with running(config, load) as (engine, model):
        run.dtype = model.dtype
        workloads = [name for name in names if name != _START]
        async for outcome in measure(engine, model, workloads, run.scale, stages.advance):
            outcomes.append(outcome)
            run.workloads.append(outcome.as_document())
            run.comparisons += outcome.comparisons()
            run.write(out)
            stages.print_line(progress_line(outcome.workload, outcome.figures(), _SAID))
    if _START in names:
        figures = {"warm_start_seconds": await warm_start(config, load)}
        run.workloads.append({"workload": _START, **figures})
        run.comparisons += compare(_START, reference().start, figures)
        run.write(out)
        stages.print_line(progress_line(_START, figures, tuple(figures)))
