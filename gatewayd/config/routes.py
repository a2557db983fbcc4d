"""Tables of routes, ``[routes.NAME]``: names that stand for several models."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, field_validator

from gatewayd.config.strategies import StrategyTable

Price = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class CandidateEntry(BaseModel):
    """Facts about one target, for strategies that compare them."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    input_price: Price | None = None
    output_price: Price | None = None
    quality: float | None = Field(default=None, ge=0, le=1)


class RouteEntry(StrategyTable):
    """One route, with a sub-table of settings for its strategy."""

    strategy: str = Field(default="fallback", pattern=r"^[a-z0-9_]+$")
    targets: list[Annotated[str, Field(min_length=1, max_length=256)]] = Field(
        min_length=1, max_length=64
    )
    candidates: dict[str, CandidateEntry] = {}

    @field_validator("targets")
    @classmethod
    def _refuse_repetition(cls, names: list[str]) -> list[str]:
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"{twice} is listed twice")
        return names


def problem_of(name: str, entry: RouteEntry, models: Collection[str]) -> str:
    """Return why a route's targets cannot be served, a sentence; empty if they can.

    Args:
        name: of the route.
        entry: its table.
        models: names of all models that the daemon serves.
    """
    for target in entry.targets:
        if target not in models:
            return f"routes.{name}.targets: no model is named {target!r}{_nearest(target, models)}"
    for described in entry.candidates:
        if described not in entry.targets:
            near = _nearest(described, entry.targets)
            return f"routes.{name}.candidates: {described!r} is none of its targets{near}"
    return ""


def _nearest(name: str, known: Collection[str]) -> str:
    found = get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {found[0]!r}?" if found else f"; there is {', '.join(known)}"
