"""Admission of requests, and offers to refused clients: changes that would be admitted now.

Each offer is checked: the strategy decides on the changed request as if it had arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from gatewayd.engines.api import EngineRequest
from gatewayd.errors import NotAdmitted
from gatewayd.plugins.admission import FencedAdmission
from gatewayd.tracing.causes import ADMISSION
from gatewayd.tracing.request_trace import TimedSpan
from gatewayd_hooks.admission import AdmissionRequest, Load
from gatewayd_hooks.scheduling import Priority

_PARTS = (2, 4, 16)
"""Divisors of the maximum output length to try, in order; then one token."""

Takes = Callable[[AdmissionRequest], bool]


def check_admission(
    admission: FencedAdmission,
    request: EngineRequest,
    num_choices: int,
    load_of: Callable[[str, int], Load],
    deadlines: Sequence[float | None],
) -> Callable[[float], None]:
    """Ask the admission strategy about a request.

    Args:
        admission: the strategy.
        request: the arriving request.
        num_choices: number of choices that it asks for.
        load_of: the present load, for a tenant and a class.
        deadlines: time-to-first-token targets of the classes.

    Returns:
        Callback for the request's first token, with the seconds since its arrival.

    Raises:
        NotAdmitted: the strategy refuses it; with offers.
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
        # The load depends on the class: `urgent_tokens` counts that class and more urgent ones.
        return admission.would_admit(other, load_of(other.tenant, other.priority))

    with TimedSpan(ADMISSION, admission.name):
        try:
            admission.check(asked, load)
        except NotAdmitted as refusal:
            refusal.offers = offers(request, asked, deadlines, takes, refusal.offers)
            raise
    return partial(admission.report_first_token, asked, load)


def offers(
    request: EngineRequest,
    asked: AdmissionRequest,
    deadlines: Sequence[float | None],
    takes: Takes,
    wished: Sequence[Mapping[str, Any]] = (),
) -> list[Mapping[str, Any]]:
    """Find changes of a refused request that would be admitted.

    Args:
        request: the refused request.
        asked: the same as the admission saw it.
        deadlines: time-to-first-token targets of the classes.
        takes: asks the admission about a changed request.
        wished: the strategy's own offers; their lengths are tried first.
    """
    lengths = [one.get("max_tokens") for one in wished]
    # The strategy may be a plugin: its own offers are hints, checked like all others.
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
        # The deadline follows the class, unless the request has set its own.
        is_own = asked.deadline != deadlines[asked.priority]
        deadline = asked.deadline if is_own else deadlines[batch]
        if takes(replace(asked, priority=batch, deadline=deadline)):
            is_tier = request.class_param == "service_tier"
            yield {request.class_param: "flex" if is_tier else "batch"}
    for size in sizes:
        # One length is enough: they are tried in order of preference.
        if size < asked.max_tokens and takes(replace(asked, max_tokens=size)):
            yield {request.length_param: size}
            return
