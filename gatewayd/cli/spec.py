"""``gatewayd spec``: estimate the speedup of speculative decoding."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from gatewayd.cli.bench.speedup import best, estimate
from gatewayd.cli.common import AsJson, print_json

app = typer.Typer(no_args_is_help=True, help="Estimate the speedup of speculative decoding.")

_MOST = 16


@app.callback()
def spec() -> None:
    """Estimate the speedup of speculative decoding."""


@app.command(name="estimate")
def estimate_(
    acceptance: Annotated[
        float,
        typer.Option(
            min=0, max=1, help="Acceptance rate: probability that a draft token is accepted."
        ),
    ] = 0.8,
    drafts: Annotated[int, typer.Option(min=0, max=64, help="Draft tokens per step.")] = 5,
    draft_cost: Annotated[
        float,
        typer.Option(
            min=0,
            help="Time to draft one token, in steps of the target model; 0.1 "
            "if drafting is 10 x faster.",
        ),
    ] = 0.1,
    token_cost: Annotated[
        float,
        typer.Option(
            min=0, help="Time that each draft token adds to a step of the target model, in steps."
        ),
    ] = 0.0,
    as_json: AsJson = False,
) -> None:
    """Estimate tokens per step and speedup; times are in steps of the target model.

    The acceptance rate is that of a draft token whose predecessors were all accepted: in /metrics,
    vllm:spec_decode_num_accepted_tokens_per_pos_total of position 1 divided by that of position 0.
    """
    asked = estimate(acceptance, drafts, draft_cost, token_cost)
    most = best(acceptance, _MOST, draft_cost, token_cost)
    if as_json:
        print_json({**asdict(asked), "best": asdict(most)})
        return
    typer.echo(
        f"{asked.drafts} draft tokens: {asked.tokens_per_step:.2f} tokens per step, "
        f"{asked.speed_up:.2f} x the speed without speculation"
    )
    if most.drafts == 0:
        typer.echo(f"no draft length from 1 to {_MOST} is faster than decoding without drafts")
    else:
        typer.echo(
            f"best draft length from 1 to {_MOST}: {most.drafts} tokens, {most.speed_up:.2f} x"
        )
