"""Settles a request that has ended once its engines have reported what it consumed.

Until then it counts against its tenant's limits, so that a client cannot avoid charges by
disconnecting in the middle of a step. A lost engine is not waited for, and one that never reports
for at most ``MOST_SECONDS``.
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
"""Timeout of usage reports; the watchdog usually restarts an engine that hangs sooner."""
# More tokens than any prompt has; `charge_aborted` limits it to the prompt's length.
_WHOLE = 2**31


class _Timer(Protocol):
    def cancel(self) -> None:
        """Cancel the scheduled callback."""


def when_usage_known(
    handles: Sequence[Handle],
    then: Callable[[Sequence[PromptUsage]], None],
    call_later: Callable[[float, Callable[[], None]], _Timer],
) -> None:
    """Call back once, when the usage of every prompt of a request is known.

    Args:
        handles: of the prompts.
        then: called with the usage of each prompt, in the same order.
        call_later: schedules a callback after so many seconds.
    """
    found: list[PromptUsage | None] = [None] * len(handles)
    left, timer = len(handles), None

    def on_usage(at: int, usage: PromptUsage) -> None:
        nonlocal left
        # Reported after the timeout.
        if found[at] is not None:
            return
        found[at], left = usage, left - 1
        if not left:
            # Still unset if all handles report within the loop below.
            if timer is not None:
                timer.cancel()
            then([one for one in found if one is not None])

    def on_timeout() -> None:
        late = [at for at, one in enumerate(found) if one is None]
        _log.error("engines did not report the usage of a request within %.0f s", MOST_SECONDS)
        for at in late:
            on_usage(at, _known(handles[at]))

    for at, handle in enumerate(handles):
        handle.on_usage_final(partial(on_usage, at))
    # Few requests need a timer: an ended sequence has usually been reported with its last step.
    if left:
        timer = call_later(MOST_SECONDS, on_timeout)


def _known(handle: Handle) -> PromptUsage:
    """Return the usage reported so far; a prompt without any report counts as computed."""
    taken = handle.usage
    if taken.prompt_tokens or handle.replica is None:
        return taken
    return taken._replace(prompt_tokens=_WHOLE)


class AbortedPrompt(NamedTuple):
    """A prompt whose request was aborted before its answer was complete.

    Attributes:
        length: tokens of the prompt.
        is_whole: whether tokens followed it, so that all of it was computed.
        delivered: delivered tokens of each choice.
        most: maximum of tokens of each choice; 0 for one that has finished.
    """

    length: int
    is_whole: bool
    delivered: Sequence[int]
    most: Sequence[int]

    @classmethod
    def of(cls, length: int, choices: Sequence[Choice], most: int) -> AbortedPrompt:
        """Create it from a prompt of ``length`` tokens, whose choices have at most ``most``."""
        return cls(
            length,
            any([one.first is not None or one.is_done for one in choices]),
            [one.completion_tokens for one in choices],
            [0 if one.is_done else most for one in choices],
        )


def charge_aborted(
    spent: Spent, aborted: Sequence[AbortedPrompt], usages: Sequence[PromptUsage]
) -> Spent:
    """Return the charge of an aborted request: computed prompt and generated tokens.

    Args:
        spent: all other fields of its usage.
        aborted: its prompts.
        usages: the reported usage of each.
    """
    prompt = cached = generated = 0
    for left, taken in zip(aborted, usages, strict=True):
        computed = left.length if left.is_whole else min(left.length, taken.prompt_tokens)
        prompt += computed
        cached += min(computed, taken.cached_tokens)
        made = zip(left.delivered, left.most, taken.generated, strict=True)
        # At least the delivered tokens; reports include undelivered ones, up to the maximum.
        generated += sum([max(sent, min(most, one)) for sent, most, one in made])
    return spent._replace(
        prompt_tokens=prompt,
        cached_tokens=cached,
        completion_tokens=generated,
        engine_seconds=sum([taken.seconds for taken in usages]),
    )


def settle_refused(
    ticket: Ticket,
    nothing: Spent,
    aborted: Sequence[AbortedPrompt],
    handles: Sequence[Handle],
    call_later: Callable[[float, Callable[[], None]], _Timer],
) -> None:
    """Settle a request of which one prompt was refused, while others may already be running.

    Args:
        ticket: of the request.
        nothing: its charge if nothing was computed; no usage row is written then.
        aborted: the prompts that were sent.
        handles: of these.
        call_later: see ``when_usage_known``.
    """

    def settle(usages: Sequence[PromptUsage]) -> None:
        spent = charge_aborted(nothing, aborted, usages)
        # Sequences may have been cancelled before their first step.
        if spent.tokens or spent.engine_seconds:
            ticket.settle(spent)
        else:
            ticket.cancel()

    if handles:
        when_usage_known(handles, settle, call_later)
    else:
        ticket.cancel()
