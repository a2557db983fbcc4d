"""``gatewayd spec``: what speculation can gain."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from gatewayd.cli.bench.speedup import best, estimate
from gatewayd.cli.common import AsJson, print_json

app = typer.Typer(no_args_is_help=True, help="What speculation can gain.")

_MOST = 16


@app.callback()
def spec() -> None:
    """What speculation can gain."""


@app.command(name="estimate")
def estimate_(
    acceptance: Annotated[
        float, typer.Option(min=0, max=1, help="Probability that a draft is kept.")
    ] = 0.8,
    drafts: Annotated[int, typer.Option(min=0, max=64, help="Tokens guessed in a step.")] = 5,
    draft_cost: Annotated[
        float,
        typer.Option(min=0, help="Time of guessing a token; 0.1 if guessing is 10 x faster."),
    ] = 0.1,
    token_cost: Annotated[
        float, typer.Option(min=0, help="Time that each draft adds to the model's step.")
    ] = 0.0,
    as_json: AsJson = False,
) -> None:
    """Expected tokens of a step and speed-up; times are in steps of the model without drafts.

    The acceptance is that of a draft all of whose predecessors were kept: of /metrics,
    vllm:spec_decode_num_accepted_tokens_per_pos_total of position 1 by that of position 0.
    """
    asked = estimate(acceptance, drafts, draft_cost, token_cost)
    most = best(acceptance, _MOST, draft_cost, token_cost)
    if as_json:
        print_json({**asdict(asked), "best": asdict(most)})
        return
    typer.echo(
        f"{asked.drafts} drafts: {asked.tokens_per_step:.2f} tokens a step, "
        f"{asked.speed_up:.2f} x as fast as none"
    )
    if most.drafts == 0:
        typer.echo(f"none of 1 to {_MOST} drafts is faster than none")
    else:
        typer.echo(f"best of 1 to {_MOST}: {most.drafts} drafts, {most.speed_up:.2f} x")
