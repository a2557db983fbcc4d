"""When a request has ended: waits for what its engines say that it took, and sums it up.

Until then its tenant's limits are held, so that nobody goes free by leaving in the middle of a
step. An engine that is lost is waited for no longer, and one that goes on and never tells
``MOST_SECONDS``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from gatewayd.engines.seam import Handle
from gatewayd.engines.taken import Taken
from gatewayd.pipeline_choice import Choice
from gatewayd.tenants.account import Ticket
from gatewayd.tenants.costs import Spent

_log = logging.getLogger(__name__)

MOST_SECONDS = 600.0
"""An engine that is silent in a long step is given up by its watchdog, mostly sooner."""
_WHOLE = 2**31


class _Timer(Protocol):
    def cancel(self) -> None:
        """Do not call."""


def when_taken(
    handles: Sequence[Handle],
    then: Callable[[Sequence[Taken]], None],
    call_later: Callable[[float, Callable[[], None]], _Timer],
) -> None:
    """Tell once what each prompt of a request took of engines; at once where that is known.

    Args:
        handles: of the prompts.
        then: told, in the same order.
        call_later: calls something so many seconds later.
    """
    found: list[Taken | None] = [None] * len(handles)
    left, timer = len(handles), None

    def told(at: int, taken: Taken) -> None:
        nonlocal left
        if found[at] is not None:
            return
        found[at], left = taken, left - 1
        if not left:
            if timer is not None:
                timer.cancel()
            then([one for one in found if one is not None])

    def give_up() -> None:
        late = [at for at, one in enumerate(found) if one is None]
        _log.error("engines have not said in %.0f s what a request took of them", MOST_SECONDS)
        for at in late:
            told(at, _known(handles[at]))

    for at, handle in enumerate(handles):
        handle.when_spent(partial(told, at))
    if left:
        timer = call_later(MOST_SECONDS, give_up)


def _known(handle: Handle) -> Taken:
    """What it took by all that is known; a prompt of which nothing is may have been computed."""
    taken = handle.taken
    if taken.prompt_tokens or handle.replica is None:
        return taken
    return taken._replace(prompt_tokens=_WHOLE)


class Left(NamedTuple):
    """A prompt whose request ended before its answer, as far as anybody was told.

    Attributes:
        length: tokens of the prompt.
        is_whole: whether tokens followed it, so that all of it was computed.
        told: tokens of each choice.
        most: that each may have generated besides; 0 for one that has ended by itself.
    """

    length: int
    is_whole: bool
    told: Sequence[int]
    most: Sequence[int]

    @classmethod
    def of(cls, length: int, choices: Sequence[Choice], most: int) -> Left:
        """A prompt of this length, with choices of at most so many tokens."""
        return cls(
            length,
            any([one.first is not None or one.is_done for one in choices]),
            [one.completion_tokens for one in choices],
            [0 if one.is_done else most for one in choices],
        )


def charged(spent: Spent, lefts: Sequence[Left], all_taken: Sequence[Taken]) -> Spent:
    """What a request that was left costs: what was computed of its prompts, and was generated.

    Args:
        spent: the rest that is known of it.
        lefts: its prompts.
        all_taken: what each took.
    """
    prompt = cached = generated = 0
    for left, taken in zip(lefts, all_taken, strict=True):
        computed = left.length if left.is_whole else min(left.length, taken.prompt_tokens)
        prompt += computed
        cached += min(computed, taken.cached_tokens)
        made = zip(left.told, left.most, taken.generated, strict=True)
        generated += sum([max(told, min(most, one)) for told, most, one in made])
    return spent._replace(
        prompt_tokens=prompt,
        cached_tokens=cached,
        completion_tokens=generated,
        engine_seconds=sum([taken.seconds for taken in all_taken]),
    )


def withdraw(
    ticket: Ticket,
    nothing: Spent,
    lefts: Sequence[Left],
    handles: Sequence[Handle],
    call_later: Callable[[float, Callable[[], None]], _Timer],
) -> None:
    """Settle a request of whose prompts one was refused; an engine may be in a step with others.

    Args:
        ticket: of the request.
        nothing: it, if nothing was computed; it leaves no trace then.
        lefts: the prompts that were sent.
        handles: of these.
        call_later: see ``when_taken``.
    """

    def settle(all_taken: Sequence[Taken]) -> None:
        spent = charged(nothing, lefts, all_taken)
        if spent.tokens or spent.engine_seconds:
            ticket.settle(spent)
        else:
            ticket.give_back()

    if handles:
        when_taken(handles, settle, call_later)
    else:
        ticket.give_back()
