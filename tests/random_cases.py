"""How many cases hypothesis draws: 25, the same each time, for a commit; 500 random ones nightly.

``make nightly`` sets ``GATEWAYD_RANDOM_CASES=500``. Tests leave ``max_examples`` out, unless one
case takes a second. The conformance kit's campaigns follow; third parties draw a hundred of each.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from gatewayd_hooks.testing.samples import campaign as kit

RANDOM_CASES = "GATEWAYD_RANDOM_CASES"
NUM_CASES = 25
_OF_A_RUN = int(os.environ.get(RANDOM_CASES, NUM_CASES))
IS_NIGHTLY = RANDOM_CASES in os.environ
"""Whether this run has time: cases are random, and what is on record is computed again."""


def few_of(values: Iterable[Any], count: int = 1) -> list[Any]:
    """Parameters of a test of which a commit runs the first few, and a night all."""
    return [
        value if k < count else pytest.param(*_tuple(value), marks=pytest.mark.slow)
        for k, value in enumerate(values)
    ]


def _tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def bound_cases() -> None:
    """Set hypothesis' defaults and the kit's campaigns; before a test module is imported."""
    settings.register_profile(
        "gatewayd",
        max_examples=_OF_A_RUN,
        # A commit's cases are the same on every run: it fails for what it changed.
        derandomize=not IS_NIGHTLY,
        database=None,
        deadline=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("gatewayd")
    kit.campaign = settings(
        kit.campaign, max_examples=_OF_A_RUN, derandomize=not IS_NIGHTLY, print_blob=True
    )
    kit.storms = kit.campaign
