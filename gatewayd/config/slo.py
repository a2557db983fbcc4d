"""Tables of service level objectives (SLOs), one for each request class."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

_FIXED = ConfigDict(extra="forbid", frozen=True, validate_default=True)

Milliseconds = Annotated[float, Field(gt=0, le=86_400_000)]


class ClassTargets(BaseModel):
    """SLO targets of a request class; None for no target."""

    model_config = _FIXED

    ttft_ms: Milliseconds | None = None
    tpot_ms: Milliseconds | None = None
    e2e_ms: Milliseconds | None = None
    # Below 1: burn rates divide by the share of requests that may miss the target.
    objective: float = Field(default=0.99, ge=0.5, lt=1)


class SloTable(BaseModel):
    """SLO targets of all request classes."""

    model_config = _FIXED

    realtime: ClassTargets = ClassTargets(ttft_ms=500.0, tpot_ms=50.0)
    standard: ClassTargets = ClassTargets(ttft_ms=2000.0, tpot_ms=100.0)
    batch: ClassTargets = ClassTargets()
