"""Encoder of ``/v1/completions`` responses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from gatewayd.http.asgi import encode_json
from gatewayd.http.openai.completion_logprobs import LogprobColumnsBuilder, PromptColumns
from gatewayd.http.openai.prompt_logprobs import encode_prompt_logprobs, pop_prompt_logprobs
from gatewayd.http.openai.wire import (
    Identity,
    chunk_usage,
    last_events,
    local,
    stop_fields,
    usage_of,
)
from gatewayd.pipeline.choice import Choice
from gatewayd.pipeline.choice_types import RelayedToken, ScoredToken
from gatewayd.pipeline.generation import Generation
from gatewayd.text.tokenizer import Tokenizer


class _NewOutput(NamedTuple):
    """Output of a choice since the last call."""

    text: str
    scored: Sequence[ScoredToken | RelayedToken]
    ids: list[int]

    @classmethod
    def of(cls, choice: Choice) -> _NewOutput:
        """Pop the output; scored tokens must be popped after the text."""
        return cls(choice.pop_text(), choice.pop_scored_tokens(), choice.pop_token_ids())


class CompletionWire:
    """Encodes text completions and their chunks, with the prompt in front if it is echoed."""

    def __init__(
        self,
        identity: Identity,
        tokenizer: Tokenizer | None,
        prompts: Sequence[str] | None,
    ) -> None:
        """Create an encoder of one response.

        Args:
            identity: of the response.
            tokenizer: of the model; None for an upstream's.
            prompts: texts to echo, one for each prompt, or None.
        """
        self._identity = identity
        self._tokenizer = tokenizer
        self._prompts = prompts
        self._opened: set[int] = set()
        self._prompt_columns: dict[int, PromptColumns] = {}
        self._prompt_scores: dict[int, bytes] = {}
        same = (encode_json(identity.id), identity.created, encode_json(identity.model))
        self._head = b'data: {"id":%b,"object":"text_completion","created":%d,"model":%b,' % same
        self._head += b'"choices":[{"index":'
        self._is_plain = not (identity.with_ids or identity.with_logprobs or prompts is not None)

    def opening(self, generation: Generation) -> bytes:
        """Return nothing, because the first chunk of each choice contains its prompt."""
        return b""

    def before_chunk(self, generation: Generation, choice: Choice) -> Callable[[], None] | None:
        """Return work that encodes the prompt's log-probabilities before a choice's first chunk."""
        index = choice.prompt_index
        if (
            self._prompts is None
            or not self._identity.with_logprobs
            or choice.index in self._opened
            or index in self._prompt_columns
            # The prompt's log-probabilities are complete when the first token has arrived.
            or (choice.first is None and not choice.is_done)
        ):
            return None
        prompt = generation.work.requests[index].prompt
        scored = pop_prompt_logprobs(generation, index)

        def work() -> None:
            self._prompt_columns[index] = PromptColumns(local(self._tokenizer), prompt, scored)

        return work

    def chunk(self, generation: Generation, choice: Choice) -> bytes:
        """Encode the new text, and the finish reason at the end."""
        if self._is_plain:
            text = choice.pop_text()
            if not text and not choice.is_done:
                return b""
            return b'%b%d,"text":%b,"logprobs":null,"finish_reason":%b,"stop_reason":%b}]%b' % (
                self._head,
                choice.index,
                encode_json(text),
                encode_json(choice.finish_reason),
                encode_json(choice.stop_reason),
                chunk_usage(self._identity, generation),
            )
        # The wake-up may be due to another choice or a ping. Until this choice has output, its
        # prompt may not be scored yet, and log-probabilities omitted in the first chunk are lost.
        news = _NewOutput.of(choice)
        if not (any(news) or choice.is_done):
            return b""
        is_first = choice.index not in self._opened
        fields = self._choice(generation, choice, news, with_prompt=is_first)
        self._opened.add(choice.index)
        # The template opens the object with the index; the rest follows it.
        rest = encode_json(fields)[1:]
        return b"%b%d,%b]%b" % (
            self._head,
            choice.index,
            rest,
            chunk_usage(self._identity, generation),
        )

    def closing(self, generation: Generation) -> bytes:
        """Encode the usage, if requested, and the end of the stream."""
        return last_events(self._identity, b"text_completion", generation)

    def answer(self, generation: Generation) -> bytes:
        """Encode the completion object."""
        identity = self._identity
        choices = []
        for choice in generation.choices:
            if generation.is_abandoned:  # while this is written in a thread
                break
            fields = self._choice(generation, choice, _NewOutput.of(choice), with_prompt=True)
            # One by one, because a hundred scored prompts as objects would take a gigabyte.
            choices.append(encode_json({"index": choice.index, **fields}))
        return (
            b'{"id":%b,"object":"text_completion","created":%d,"model":%b,"choices":[%b],"usage":%b}'
            % (
                encode_json(identity.id),
                identity.created,
                encode_json(identity.model),
                b",".join(choices),
                usage_of(generation),
            )
        )

    def _choice(
        self, generation: Generation, choice: Choice, news: _NewOutput, *, with_prompt: bool
    ) -> dict[str, Any]:
        prompt = generation.work.requests[choice.prompt_index].prompt
        echoed = self._prompts[choice.prompt_index] if self._prompts is not None else ""
        fields: dict[str, Any] = {
            "text": (echoed if with_prompt else "") + news.text,
            "logprobs": None,
            **stop_fields(choice),
        }
        if self._identity.with_logprobs:
            columns = LogprobColumnsBuilder(self._tokenizer)
            for token in news.scored:
                if isinstance(token, RelayedToken):
                    columns.add_relayed(token.shown, len(echoed) + token.start)
                else:
                    columns.add(token.logprobs, len(echoed) + token.start, opens=token.opens)
            fields["logprobs"] = columns.fields
            if with_prompt and self._prompts is not None:
                fields["logprobs"] = self._columns_of_prompt(generation, choice).before(columns)
        if self._identity.with_ids:
            fields["token_ids"] = news.ids
            fields["prompt_token_ids"] = list(prompt) if with_prompt else None
        if self._identity.with_prompt_logprobs:
            fields["prompt_logprobs"] = self._scores_of_prompt(generation, choice)
        return fields

    def _scores_of_prompt(self, generation: Generation, choice: Choice) -> msgspec.Raw:
        """Return the prompt's log-probabilities, encoded once for all its choices."""
        index = choice.prompt_index
        # Popped by the first choice that is encoded, for all of them.
        if index not in self._prompt_scores:
            scored = pop_prompt_logprobs(generation, index)
            self._prompt_scores[index] = encode_prompt_logprobs(scored, local(self._tokenizer))
        return msgspec.Raw(self._prompt_scores[index])

    def _columns_of_prompt(self, generation: Generation, choice: Choice) -> PromptColumns:
        """Return the prompt's columns, encoded once and released with the last of its choices."""
        index = choice.prompt_index
        work = self.before_chunk(generation, choice)
        if work is not None:
            work()
        columns = self._prompt_columns[index]
        columns.num_written += 1
        if columns.num_written == generation.work.num_choices:
            del self._prompt_columns[index]
        return columns
