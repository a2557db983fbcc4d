"""One request that is relayed to an upstream: time-outs, delivery to its choices, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gatewayd.engines.api import EngineRequest, Relay, RelaySink
from gatewayd.engines.prompt_usage import PromptUsage
from gatewayd.errors import GatewayError, UpstreamError, UpstreamTimeout
from gatewayd.tracing.timeline import RELAYING, UPSTREAM, UPSTREAM_SLOT, Timeline
from gatewayd.upstreams.client import UpstreamBroken, UpstreamExchange
from gatewayd.upstreams.counting import shared, tokens_in
from gatewayd.upstreams.embedding import decoded, most_bytes
from gatewayd.upstreams.errors import error_of
from gatewayd.upstreams.limits import UpstreamSlot
from gatewayd_hooks.upstreams import (
    Delta,
    UpstreamCall,
    UpstreamCounts,
    UpstreamRefusal,
    UpstreamStrategy,
)

_log = logging.getLogger(__name__)

_COUNTS_SECONDS = 2.0
"""Time for the token counts after the last finish reason; without them the answer is complete."""
_REASONS = frozenset(("stop", "length", "tool_calls", "content_filter"))


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayTerms:
    """What all requests of an upstream share.

    Attributes:
        name: of the upstream.
        strategy: translator.
        exchange: creates the HTTP client of a request.
        first_token_seconds: time-out from sending until the first output.
        between_tokens_seconds: time-out from one output to the next.
        api_key: its credential, to be removed from errors.
    """

    name: str
    strategy: UpstreamStrategy
    exchange: Callable[[], UpstreamExchange]
    first_token_seconds: float
    between_tokens_seconds: float
    api_key: str = ""


class RelayedRequest:
    """A request in flight; implements ``gatewayd.engines.api.Handle``.

    Args:
        terms: of the upstream.
        request: with a relay.
        relay: of the request.
        sinks: of its choices.
        slot: of the upstream's limits, or a place in the queue for one.
        ended: called with this object when its task has ended.
    """

    def __init__(
        self,
        terms: RelayTerms,
        request: EngineRequest,
        relay: Relay,
        sinks: Sequence[RelaySink],
        slot: UpstreamSlot,
        ended: Callable[[RelayedRequest], None],
    ) -> None:
        self._terms = terms
        self._request = request
        self._relay = relay
        self._sinks = sinks
        self._slot = slot
        self._ended = ended
        self._exchange = terms.exchange()
        self._open = set(range(len(sinks)))
        self._estimates = [0] * len(sinks)
        self._counts: UpstreamCounts | None = None
        self._last: Delta | None = None
        self._has_output = self._has_begun = self._is_over = False
        now = self._submitted = time.monotonic()
        self.timelines = [Timeline(now) for _ in sinks]
        self._enter(UPSTREAM_SLOT)
        self._task = asyncio.get_running_loop().create_task(self._run(), name="relay")
        # Also called for a task that is cancelled before its first step.
        self._task.add_done_callback(self._done)

    # Handle: for the pipeline.

    def cancel(self, choice: int | None = None) -> None:
        """See ``Handle``; the last one closes the connection."""
        if choice is None:
            self._open.clear()
        else:
            self._open.discard(choice)
        now = time.monotonic()
        for at, timeline in enumerate(self.timelines):
            if at not in self._open:
                timeline.stop(now)
        # While the counts are awaited no choice is open, and cancelling one changes nothing.
        is_last = choice is None or (not self._open and self._last is None)
        if is_last and not self._is_over:
            self._is_over = True
            self._task.cancel()

    @property
    def replica(self) -> int | None:
        """Index of the endpoint."""
        endpoint = self._exchange.endpoint
        return None if endpoint is None else endpoint.index

    @property
    def usage(self) -> PromptUsage:
        """See ``Handle``: what the upstream has reported, else estimates."""
        if self._counts is not None:
            prompt, cached = self._counts.prompt_tokens, self._counts.cached_tokens
        else:
            prompt, cached = self._relay.likely_tokens if self._exchange.is_sent else 0, 0
        return PromptUsage(0.0, prompt, cached, tuple(self._completions()))

    def on_usage_final(self, tell: Callable[[PromptUsage], None]) -> None:
        """See ``Handle``: an upstream reports nothing after its answer has ended."""
        tell(self.usage)

    def fail(self, error: GatewayError) -> None:
        """End it with an error."""
        if self._is_over:
            return
        self._is_over = True
        self._deliver_error(error)
        self._task.cancel()

    async def stop(self) -> None:
        """End it without an answer, and wait until its connection is closed."""
        self._is_over = True
        self._task.cancel()
        await asyncio.wait([self._task])

    # The task.

    async def _run(self) -> None:
        try:
            try:
                await self._slot.wait()
                await self._relay_all()
            finally:
                self._slot.release(is_used=self._exchange.is_sent)
            # The connection can be used again, while the client has its whole answer.
            await self._exchange.close(drains=True)
        except asyncio.CancelledError:
            if not self._is_over:  # by the event loop's end
                raise
        except GatewayError as error:
            self._finish_with(error)
        except Exception:  # noqa: BLE001 - a plugin may raise anything
            _log.exception("strategy of the upstream %s failed", self._terms.name)
            self._finish_with(self._broken("its strategy failed; see the gateway's log"))
        finally:
            with contextlib.suppress(OSError):
                await self._exchange.close()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._slot.release(is_used=self._exchange.is_sent)
        self._ended(self)

    async def _relay_all(self) -> None:
        """Relay the whole answer.

        Raises:
            GatewayError: it failed before its end.
        """
        terms, waited = self._terms, time.monotonic() - self._submitted
        for sink in self._live():
            sink.admitted(0, waited)
        self._enter(UPSTREAM)
        try:
            async with asyncio.timeout(terms.first_token_seconds) as limit:
                await self._read(limit)
        except TimeoutError as error:
            if not limit.expired():
                self._ended_early("a time-out in its strategy", error)
            elif not self._is_complete:
                raise self._timeout() from error
        except UpstreamRefusal as refusal:
            response = self._exchange.response
            retry_after = None if response is None else response.retry_after
            # Statuses of responses are recorded by the exchange; this one came in the answer.
            if refusal.status >= 500 and response is not None and response.status < 500:
                self._exchange.failed(f"its answer ended with an error (status {refusal.status})")
            is_sent = self._exchange.is_sent
            raise error_of(
                refusal, terms.name, retry_after, terms.api_key, is_sent=is_sent
            ) from refusal
        except UpstreamBroken as broken:
            raise broken.error from broken
        except OSError as error:
            self._ended_early("it broke its answer off", error)
        except ValueError as error:
            _log.warning("invalid answer of the upstream %s: %s", terms.name, str(error)[:200])
            self._ended_early("its answer does not follow its API", error)
        if not self._is_complete:
            self._ended_early("its answer ended without a finish reason", None)
        self._exchange.succeeded()
        self._finish()

    async def _read(self, limit: asyncio.Timeout) -> None:
        terms, loop = self._terms, asyncio.get_running_loop()
        call = self._relay.call._replace(request_id=self._request.request_id)
        if call.kind == "embedding":
            await self._embed(call, limit)
            return
        outputs: Any = terms.strategy.answer(call, self._exchange)
        async with contextlib.aclosing(outputs):
            async for output in outputs:
                if isinstance(output, UpstreamCounts):
                    self._count(output)
                else:
                    self._deliver(output)
                    # Only output counts: comments and empty events keep no answer alive.
                    seconds = terms.between_tokens_seconds
                    if self._last is not None:
                        seconds = min(seconds, _COUNTS_SECONDS)
                    limit.reschedule(loop.time() + seconds)

    async def _embed(self, call: UpstreamCall, limit: asyncio.Timeout) -> None:
        """Receive embeddings, which come as a whole."""
        terms, exchange, loop = self._terms, self._exchange, asyncio.get_running_loop()

        def began() -> None:
            self._has_begun = True
            self._enter(RELAYING)
            limit.reschedule(loop.time() + terms.between_tokens_seconds)

        upstream: Any = terms.strategy  # checked before: it embeds
        exchange.began, exchange.most_bytes = began, most_bytes(call.body)
        try:
            decode = await upstream.embed(call, exchange)
        finally:
            exchange.began = None  # it refers back to the request
        limit.reschedule(None)  # the rest is the gateway's time
        found = await decoded(decode, call.body, terms.name)
        if found.prompt_tokens is not None:
            self._count(UpstreamCounts(found.prompt_tokens, 0))
        if self._open:
            self._sinks[0].embedded(found.vectors)
        self._deliver(Delta(0, (), "stop"))

    def _deliver(self, delta: Delta) -> None:
        at = delta.choice
        if not 0 <= at < len(self._sinks):
            raise ValueError(f"it has the choice {at} of {len(self._sinks)}")
        if not self._has_output:
            self._has_output = True
            if self._counts is None:
                # What is charged if the answer breaks off, instead of the maximum.
                self._sinks[0].counted(UpstreamCounts(self._relay.likely_tokens, 0), None)
        if at not in self._open:
            return  # cancelled, or it goes on after its finish reason
        timeline = self.timelines[at]
        if timeline.cause != RELAYING:
            timeline.enter(RELAYING, time.monotonic())
        self._estimates[at] += tokens_in(delta)
        reason = delta.finish_reason
        if reason is None:
            self._sinks[at].relayed(delta)
            return
        if reason not in _REASONS:
            reason = "stop"
            delta = delta._replace(finish_reason=reason)
        if len(self._open) == 1:
            # The counts follow the last finish reason, which ends the request; the output is
            # relayed at once, so that it is counted before them.
            self._last, self._open = Delta(at, (), reason, delta.stop), set()
            if delta.parts or delta.logprobs:
                self._sinks[at].relayed(delta._replace(finish_reason=None, stop=None))
        else:
            self._open.discard(at)
            timeline.stop(time.monotonic())
            self._sinks[at].relayed(delta)

    @property
    def _is_complete(self) -> bool:
        return self._last is not None

    def _count(self, counts: UpstreamCounts) -> None:
        """Report token counts so far.

        Raises:
            ValueError: they are not possible.
        """
        if min(counts.prompt_tokens, counts.completion_tokens, counts.cached_tokens) < 0:
            raise ValueError("it reports negative token counts")
        if max(counts.prompt_tokens, counts.completion_tokens) >= 2**31:
            raise ValueError("it reports more than 2**31 tokens")
        self._counts = counts._replace(
            cached_tokens=min(counts.cached_tokens, counts.prompt_tokens)
        )
        if self._last is None:
            self._report_counts()

    def _report_counts(self) -> None:
        for at, (sink, completion) in enumerate(zip(self._sinks, self._completions(), strict=True)):
            sink.counted(self._counts if at == 0 else None, completion)

    def _completions(self) -> list[int]:
        counts = self._counts
        if counts is None:
            return list(self._estimates)
        return shared(counts.completion_tokens, self._estimates)

    def _finish(self) -> None:
        """Deliver the end, after the counts."""
        last, self._last = self._last, None
        if last is None:
            return
        self._is_over = True
        if self._counts is None:
            _log.info("the upstream %s reports no token counts", self._terms.name)
            likely = self._relay.likely_tokens
            self._counts = UpstreamCounts(likely, sum(self._estimates))
        self._report_counts()
        self.timelines[last.choice].stop(time.monotonic())
        self._sinks[last.choice].relayed(last)

    def _finish_with(self, error: GatewayError) -> None:
        if not self._is_over:
            self._is_over = True
            self._deliver_error(error)

    def _deliver_error(self, error: GatewayError) -> None:
        now, live = time.monotonic(), self._live()
        for timeline in self.timelines:
            timeline.stop(now)
        if self._last is not None:
            live.append(self._sinks[self._last.choice])
        for sink in live:
            sink.failed(error)

    def _live(self) -> list[RelaySink]:
        return [self._sinks[at] for at in sorted(self._open)]

    def _enter(self, cause: int) -> None:
        now = time.monotonic()
        for at in self._open:
            self.timelines[at].enter(cause, now)

    def _ended_early(self, what: str, error: Exception | None) -> None:
        """Record a failure within the answer.

        Raises:
            UpstreamError: the answer is not complete.
        """
        self._exchange.failed(what)
        if not self._is_complete:
            raise self._broken(what) from error

    def _broken(self, what: str) -> UpstreamError:
        return UpstreamError(f"the upstream {self._terms.name} failed: {what}")

    def _timeout(self) -> UpstreamTimeout:
        terms = self._terms
        first, between = terms.first_token_seconds, terms.between_tokens_seconds
        if self._has_output:
            what = f"sent no token for {between:g} s (between_tokens_seconds)"
        elif self._has_begun:
            what = f"did not end its answer within {between:g} s (between_tokens_seconds)"
        elif self._relay.call.kind == "embedding":
            what = f"did not answer within {first:g} s (first_token_seconds)"
        else:
            what = f"sent no token within {first:g} s (first_token_seconds)"
        self._exchange.failed(what)
        return UpstreamTimeout(f"the upstream {terms.name} {what}")
