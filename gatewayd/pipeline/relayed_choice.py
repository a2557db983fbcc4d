"""One choice of a request to an upstream: buffers parts instead of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from gatewayd.errors import GatewayError
from gatewayd.pipeline.choice import Choice, ChoiceOptions
from gatewayd.pipeline.choice_types import ChoiceOwner, RelayedToken
from gatewayd_hooks.parsing import Arguments, Part, Reasoning, Text, ToolCall
from gatewayd_hooks.upstreams import Delta, UpstreamCounts

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class RelayedChoice(Choice):
    """Output of one choice of an upstream, read as any other; a ``RelaySink``.

    Attributes:
        vectors: of a request for embeddings; None until they have arrived.
    """

    __slots__ = ("_parts", "_reasoning_tokens", "_shown", "_shown_chars", "vectors")

    def __init__(
        self, index: int, prompt_index: int, options: ChoiceOptions, owner: ChoiceOwner
    ) -> None:
        super().__init__(index, prompt_index, options, owner)
        self._parts: list[Part] = [Text(options.prefix)] if options.prefix else []
        self._shown: list[RelayedToken] = []
        self._shown_chars = len(options.prefix)
        self._reasoning_tokens: int | None = None
        self.vectors: NDArray[np.float64] | None = None

    # RelaySink: callbacks from the upstream.

    def relayed(self, delta: Delta) -> None:
        """Buffer new output, and wake the request."""
        if self.is_done:
            return
        if delta.parts or delta.logprobs:
            self._observe()
            self._add_tokens(len(delta.logprobs) or 1)
        self._parts += [
            part
            for part in delta.parts
            if self._options.keeps_reasoning or not isinstance(part, Reasoning)
        ]
        for token in delta.logprobs:
            self._shown.append(RelayedToken(token, self._shown_chars))
            self._shown_chars += len(str(token.get("token", "")))
        if delta.finish_reason is not None:
            self._end(delta.finish_reason, delta.stop)
        if self._wakes or self.is_done:
            self._owner.wake()

    def embedded(self, vectors: NDArray[np.float64]) -> None:
        """Store embeddings."""
        self._observe()
        self.vectors = vectors

    def counted(self, prompt: UpstreamCounts | None, completion_tokens: int | None) -> None:
        """Correct the token counts by those of the upstream."""
        if prompt is not None:
            self._count_prompt(prompt.prompt_tokens, prompt.cached_tokens)
            self._reasoning_tokens = prompt.reasoning_tokens
        if completion_tokens is not None:
            self._add_tokens(completion_tokens - self.completion_tokens)

    def failed(self, error: GatewayError) -> None:
        """Fail the whole request."""
        self._owner.fail(error)

    def _observe(self) -> None:
        now = self._clock()
        if self.last is None:
            self.first = now
            self._observe_gap = self._owner.gap_observer(self.prompt_index)
        else:
            self._observe_gap(now - self.last)
        self.last = now

    def _add_tokens(self, tokens: int) -> None:
        self.completion_tokens += tokens
        if tokens and self._progress is not None:
            self._progress.generated(tokens)

    def _count_prompt(self, tokens: int, cached: int) -> None:
        self.cached_tokens = cached
        self._owner.count_prompt(self.prompt_index, tokens)
        self.computed(tokens)

    # For the judge of a whole answer that nothing has been popped of.

    @property
    def unread_text(self) -> str:
        """Text that is buffered, with names and arguments of calls, without reasoning."""
        return "".join(
            [
                part.name if isinstance(part, ToolCall) else part.text
                for part in self._parts
                if not isinstance(part, Reasoning)
            ]
        )

    @property
    def mean_logprob(self) -> float | None:
        """Mean log-probability of the buffered tokens; None if the upstream reports none."""
        values = [token.shown.get("logprob") for token in self._shown]
        known = [float(one) for one in values if isinstance(one, int | float)]
        return sum(known) / len(known) if known else None

    # For the writer of the response.

    def pop_parts(self) -> Sequence[Part]:
        """Pop the parts, adjacent ones of the same kind merged."""
        parts, self._parts = self._parts, []
        return _merged(parts)

    def pop_text(self) -> str:
        """Pop the text; answers of text completions have nothing else."""
        return "".join([part.text for part in self.pop_parts() if isinstance(part, Text)])

    def pop_scored_tokens(self) -> Sequence[RelayedToken]:
        """Pop the tokens with log-probabilities."""
        shown, self._shown = self._shown, []
        return shown

    @property
    def counts_reasoning(self) -> bool:
        """Whether the upstream reports reasoning tokens."""
        return self._reasoning_tokens is not None

    @property
    def reasoning_tokens(self) -> int:
        """Number of reasoning tokens of all choices, as reported; for the first choice."""
        return self._reasoning_tokens or 0


def _merged(parts: Sequence[Part]) -> list[Part]:
    """Merge adjacent parts of one kind, and of one call."""
    found: list[Part] = []
    for (kind, call), same in groupby(parts, lambda part: (type(part), _call_of(part))):
        if kind is ToolCall:
            found += same
            continue
        # Joined at once: one by one would copy a long answer again and again.
        text = "".join([part.text for part in same if not isinstance(part, ToolCall)])
        if kind is Arguments:
            found.append(Arguments(call, text))
        else:
            found.append(Text(text) if kind is Text else Reasoning(text))
    return found


def _call_of(part: Part) -> int:
    return part.call if isinstance(part, Arguments) else -1
