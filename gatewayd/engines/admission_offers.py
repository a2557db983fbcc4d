"""Who is taken on, and what a refused client is offered: changes that would be taken on now.

Nothing is offered unasked: the strategy decides on each changed request as if it had come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from gatewayd.engines.api import EngineRequest
from gatewayd.errors import NotAdmitted
from gatewayd.plugins.admission import FencedAdmission
from gatewayd_hooks.admission import AdmissionRequest, Load
from gatewayd_hooks.scheduling import Priority

_PARTS = (2, 4, 16)
"""Of the answer's tokens, the first that is taken on; then one token alone."""

Takes = Callable[[AdmissionRequest], bool]


def admit(
    admission: FencedAdmission,
    request: EngineRequest,
    num_choices: int,
    load_of: Callable[[str, int], Load],
    deadlines: Sequence[float | None],
) -> Callable[[float], None]:
    """Ask an admission about a request.

    Args:
        admission: the strategy.
        request: that has come.
        num_choices: answers that it wants.
        load_of: what waits, for a tenant and a class.
        deadlines: of the classes.

    Returns:
        Whom to tell when the request has begun.

    Raises:
        NotAdmitted: it refuses; with offers.
    """
    asked = AdmissionRequest(
        prompt_tokens=len(request.prompt),
        max_tokens=request.params.max_tokens,
        num_choices=num_choices,
        priority=request.priority,
        tenant=request.tenant,
        deadline=request.deadline,
    )
    load = load_of(request.tenant, request.priority)

    def takes(other: AdmissionRequest) -> bool:
        return admission.takes(other, load_of(other.tenant, other.priority))

    try:
        admission.check(asked, load)
    except NotAdmitted as refusal:
        refusal.offers = offers(request, asked, deadlines, takes, refusal.offers)
        raise
    return partial(admission.began, asked, load)


def offers(
    request: EngineRequest,
    asked: AdmissionRequest,
    deadlines: Sequence[float | None],
    takes: Takes,
    wished: Sequence[Mapping[str, Any]] = (),
) -> list[Mapping[str, Any]]:
    """Find what would be taken on.

    Args:
        request: that was refused.
        asked: what the admission was told of it.
        deadlines: of the classes.
        takes: asks the admission about a changed request.
        wished: what the strategy would offer; its lengths are tried first.
    """
    lengths = [one.get("max_tokens") for one in wished]
    sizes = [size for size in lengths if isinstance(size, int) and size > 0]
    sizes += [asked.max_tokens // part for part in _PARTS if asked.max_tokens // part > 1]
    return list(_found(request, asked, deadlines, takes, [*sizes, 1]))


def _found(
    request: EngineRequest,
    asked: AdmissionRequest,
    deadlines: Sequence[float | None],
    takes: Takes,
    sizes: Sequence[int],
) -> Iterator[Mapping[str, Any]]:
    batch = Priority.BATCH
    if asked.priority != batch:
        # A class has a deadline of its own; a wish of the request's own stays.
        is_own = asked.deadline != deadlines[asked.priority]
        deadline = asked.deadline if is_own else deadlines[batch]
        if takes(replace(asked, priority=batch, deadline=deadline)):
            is_tier = request.class_param == "service_tier"
            yield {request.class_param: "flex" if is_tier else "batch"}
    for size in sizes:
        if size < asked.max_tokens and takes(replace(asked, max_tokens=size)):
            yield {request.length_param: size}
            return
