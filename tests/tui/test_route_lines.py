"""Why screen: the decision of a request's route."""

from __future__ import annotations

import msgspec

from gatewayd.wire.requests import AttemptPart, RoutePart
from gatewayd_tui.waterfall import markdown, render_breakdown
from tests.tui.samples import explanation

ROUTE = RoutePart(
    route="chat",
    strategy="cascade",
    reason="answers are judged",
    order=["small", "large"],
    scores={"other": None, "small": 1.0, "large": 0.25},
    attempts=[
        AttemptPart("small", "rejected", 61.2, "too uncertain", -0.713, 38, 12),
        AttemptPart("large", "lost", 9.0, "lost"),
    ],
)
LINES = """\
route chat (cascade): answers are judged
  1.  small: score 1
  2.  large: score 0.25
  -   other: no score
  small rejected after 61.2 ms: too uncertain (score -0.713); charged 38 + 12 tokens
  large lost after 9.0 ms
"""


def test_it_shows_candidates_scores_and_attempts() -> None:
    plain = explanation("r1")
    routed = msgspec.structs.replace(plain, route=ROUTE)
    assert LINES in render_breakdown(routed, 120).plain
    assert LINES in markdown(routed)
    assert "route" not in render_breakdown(plain, 120).plain
