"""How many cases hypothesis draws: 25, the same each time, for a commit; 500 random ones nightly.

``make nightly`` sets ``GATEWAYD_RANDOM_CASES=500``. Tests leave ``max_examples`` out, unless one
case takes a second. The conformance kit's campaigns follow; third parties draw a hundred of each.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

from gatewayd_hooks.testing import campaign as kit

RANDOM_CASES = "GATEWAYD_RANDOM_CASES"
NUM_CASES = 25
_OF_A_RUN = int(os.environ.get(RANDOM_CASES, NUM_CASES))
IS_NIGHTLY = RANDOM_CASES in os.environ
"""Whether this run has time: cases are random, and what is on record is computed again."""


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
