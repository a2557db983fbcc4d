"""Decision of a route about one request, and the attempts at its targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

ABANDONED = "abandoned"
ANSWERED = "answered"
REJECTED = "rejected"
SAMPLED = "sampled"


class RouteAttempt(msgspec.Struct, frozen=True, gc=False):
    """Attempt to have one target answer.

    Attributes:
        target: name of the model.
        outcome: ``answered``, ``rejected`` by the route's judge, ``sampled`` for it, or the
            failure, such as ``lost``; ``abandoned`` if the client disconnected.
        seconds: until the first output, the end of a judged answer, or the failure.
        detail: code of the error, or reason of the judge.
        score: of the judge; None if it was not judged.
        prompt_tokens: that were charged for answers that were not sent; 0 for all others.
        completion_tokens: as ``prompt_tokens``.
    """

    target: str
    outcome: str
    seconds: float
    detail: str = ""
    score: float | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0


class RouteRecord(msgspec.Struct, frozen=True, gc=False):
    """Decision of a route with all attempts.

    Attributes:
        route: its name.
        strategy: the model router.
        reason: of the decision.
        order: of the targets.
        scores: of all candidates; None for one without a score.
        attempts: in chronological order.
    """

    route: str
    strategy: str
    reason: str
    order: Sequence[str]
    scores: Mapping[str, float | None]
    attempts: Sequence[RouteAttempt] = ()


@dataclass(slots=True, eq=False)
class RouteTrace:
    """Decision of a route while its request is processed.

    Attributes:
        decided: the decision, without attempts.
        target: the target that answers; empty until one does.
        attempts: in chronological order.
    """

    decided: RouteRecord
    target: str = ""
    attempts: list[RouteAttempt] = field(default_factory=list)

    @property
    def record(self) -> RouteRecord:
        """The decision with the attempts up to now."""
        return msgspec.structs.replace(self.decided, attempts=tuple(self.attempts))
