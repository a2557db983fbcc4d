"""Settles a request that has ended once its engines have reported what it consumed.

Until then it holds its tenant's limits, so that a client cannot avoid charges by disconnecting in
the middle of a step. A lost engine is not waited for, and one that never reports for at most
``MOST_SECONDS``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from gatewayd.engines.api import Handle
from gatewayd.engines.prompt_usage import PromptUsage
from gatewayd.pipeline.choice import Choice
from gatewayd.tenants.account import Ticket
from gatewayd.tenants.billing.costs import Spent

_log = logging.getLogger(__name__)

MOST_SECONDS = 600.0
"""An engine that hangs in a long step is mostly given up by its watchdog sooner."""
_WHOLE = 2**31


class _Timer(Protocol):
    def cancel(self) -> None:
        """Do not call."""


def when_taken(
    handles: Sequence[Handle],
    then: Callable[[Sequence[PromptUsage]], None],
    call_later: Callable[[float, Callable[[], None]], _Timer],
) -> None:
    """Call back once, when the consumption of every prompt of a request is known.

    Args:
        handles: of the prompts.
        then: called with the consumption of each prompt, in the same order.
        call_later: schedules a callback after so many seconds.
    """
    found: list[PromptUsage | None] = [None] * len(handles)
    left, timer = len(handles), None

    def told(at: int, taken: PromptUsage) -> None:
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
        _log.error("engines did not report the usage of a request within %.0f s", MOST_SECONDS)
        for at in late:
            told(at, _known(handles[at]))

    for at, handle in enumerate(handles):
        handle.on_usage_final(partial(told, at))
    if left:
        timer = call_later(MOST_SECONDS, give_up)


def _known(handle: Handle) -> PromptUsage:
    """The consumption so far; a prompt without any report counts as computed."""
    taken = handle.usage
    if taken.prompt_tokens or handle.replica is None:
        return taken
    return taken._replace(prompt_tokens=_WHOLE)


class AbortedPrompt(NamedTuple):
    """A prompt whose request was aborted before its answer was complete.

    Attributes:
        length: tokens of the prompt.
        is_whole: whether tokens followed it, so that all of it was computed.
        told: delivered tokens of each choice.
        most: maximum of tokens of each choice; 0 for one that has ended by itself.
    """

    length: int
    is_whole: bool
    told: Sequence[int]
    most: Sequence[int]

    @classmethod
    def of(cls, length: int, choices: Sequence[Choice], most: int) -> AbortedPrompt:
        """A prompt of this length, with choices of at most so many tokens."""
        return cls(
            length,
            any([one.first is not None or one.is_done for one in choices]),
            [one.completion_tokens for one in choices],
            [0 if one.is_done else most for one in choices],
        )


def charged(
    spent: Spent, lefts: Sequence[AbortedPrompt], all_taken: Sequence[PromptUsage]
) -> Spent:
    """The charge of an aborted request: what was computed of its prompts, and what was generated.

    Args:
        spent: everything else that is known of it.
        lefts: its prompts.
        all_taken: the consumption of each.
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
    lefts: Sequence[AbortedPrompt],
    handles: Sequence[Handle],
    call_later: Callable[[float, Callable[[], None]], _Timer],
) -> None:
    """Settle a request one of whose prompts was refused; others may be running already.

    Args:
        ticket: of the request.
        nothing: its charge if nothing was computed; no usage row is written then.
        lefts: the prompts that were sent.
        handles: of these.
        call_later: see ``when_taken``.
    """

    def settle(all_taken: Sequence[PromptUsage]) -> None:
        spent = charged(nothing, lefts, all_taken)
        if spent.tokens or spent.engine_seconds:
            ticket.settle(spent)
        else:
            ticket.cancel()

    if handles:
        when_taken(handles, settle, call_later)
    else:
        ticket.cancel()
