"""The answers of ``/v1/completions``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from gatewayd.http.asgi import encode_json
from gatewayd.http.wire import (
    Identity,
    chunk_usage,
    finite,
    last_events,
    stop_fields,
    token_name,
    usage_of,
)
from gatewayd.pipeline import Generation
from gatewayd.pipeline_choice import Choice, ScoredToken
from gatewayd.text.tokenizer import Tokenizer
from gatewayd_engine.messages import TokenLogprobs


class _News(NamedTuple):
    """What came to a choice since the last time."""

    text: str
    scored: list[ScoredToken]
    ids: list[int]

    @classmethod
    def of(cls, choice: Choice) -> _News:
        """Take it; scored tokens follow the text."""
        return cls(choice.take(), choice.take_scored(), choice.take_ids())


class CompletionWire:
    """Writes text completions and their chunks, with the prompt before them if it is echoed."""

    def __init__(
        self, identity: Identity, tokenizer: Tokenizer, prompts: Sequence[str] | None
    ) -> None:
        """Prepare one answer.

        Args:
            identity: of the answer.
            tokenizer: of the model.
            prompts: texts to echo, one for each prompt, or None.
        """
        self._identity = identity
        self._tokenizer = tokenizer
        self._prompts = prompts
        self._opened: set[int] = set()
        self._prompt_columns: dict[int, _Columns] = {}
        same = (encode_json(identity.id), identity.created, encode_json(identity.model))
        self._head = b'data: {"id":%b,"object":"text_completion","created":%d,"model":%b,' % same
        self._head += b'"choices":[{"index":'
        self._is_plain = not (identity.with_ids or identity.with_logprobs or prompts is not None)

    def opening(self, generation: Generation) -> bytes:
        """Nothing: the first chunk of each choice carries its prompt."""
        return b""

    def chunk(self, generation: Generation, choice: Choice) -> bytes:
        """The text so far, and the reason when it has ended."""
        if self._is_plain:
            text = choice.take()
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
        # A wake-up may be another choice's or a ping's: until this one has something, its
        # prompt need not be scored, and what the first chunk leaves out is never told.
        news = _News.of(choice)
        if not (any(news) or choice.is_done):
            return b""
        is_first = choice.index not in self._opened
        self._opened.add(choice.index)
        fields = self._choice(generation, choice, news, with_prompt=is_first)
        # The template opens the object with the index; the rest follows it.
        rest = encode_json(fields)[1:]
        return b"%b%d,%b]%b" % (
            self._head,
            choice.index,
            rest,
            chunk_usage(self._identity, generation),
        )

    def closing(self, generation: Generation) -> bytes:
        """The usage, if wanted, and the end."""
        return last_events(self._identity, b"text_completion", generation)

    def answer(self, generation: Generation) -> bytes:
        """The completion object."""
        identity = self._identity
        choices = []
        for choice in generation.choices:
            fields = self._choice(generation, choice, _News.of(choice), with_prompt=True)
            # One by one: what a hundred scored prompts look like before would be a gigabyte.
            choices.append(encode_json({"index": choice.index, **fields}))
            if (choice.index + 1) % generation.work.num_choices == 0:
                self._prompt_columns.clear()
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
        self, generation: Generation, choice: Choice, news: _News, *, with_prompt: bool
    ) -> dict[str, Any]:
        prompt = generation.work.requests[choice.prompt_index].prompt
        echoed = self._prompts[choice.prompt_index] if self._prompts is not None else ""
        fields: dict[str, Any] = {
            "text": (echoed if with_prompt else "") + news.text,
            "logprobs": None,
            **stop_fields(choice),
        }
        if self._identity.with_logprobs:
            columns = _Columns(self._tokenizer)
            if with_prompt and self._prompts is not None:
                columns.extend(self._columns_of_prompt(generation, choice))
            for token in news.scored:
                columns.add(token.logprobs, len(echoed) + token.start, opens=token.opens)
            fields["logprobs"] = columns.fields
        if self._identity.with_ids:
            fields["token_ids"] = news.ids
            fields["prompt_token_ids"] = list(prompt) if with_prompt else None
        return fields

    def _columns_of_prompt(self, generation: Generation, choice: Choice) -> _Columns:
        """Made once for all choices of a prompt."""
        columns = self._prompt_columns.get(choice.prompt_index)
        if columns is None:
            columns = self._prompt_columns[choice.prompt_index] = _Columns(self._tokenizer)
            prompt = generation.work.requests[choice.prompt_index].prompt
            columns.add_prompt(prompt, _scored_prompt(generation, choice))
        return columns


def _scored_prompt(generation: Generation, choice: Choice) -> Sequence[TokenLogprobs]:
    """The choices of a prompt share its log-probabilities: any of them may have got them."""
    n = generation.work.num_choices
    siblings = generation.choices[choice.prompt_index * n : (choice.prompt_index + 1) * n]
    return next((one.scored_prompt for one in siblings if one.scored_prompt), [])


class _Columns:
    """The four columns of the older log-probability shape."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.fields: dict[str, list[Any]] = {
            "tokens": [],
            "token_logprobs": [],
            "top_logprobs": [],
            "text_offset": [],
        }

    def extend(self, other: _Columns) -> None:
        """Put the rows of another one after these."""
        for name, column in self.fields.items():
            column.extend(other.fields[name])

    def add_prompt(self, ids: Sequence[int], scored: Sequence[TokenLogprobs]) -> None:
        """The prompt's tokens; nothing comes before the first, so it has no probability."""
        detokenizer, offset = self._tokenizer.detokenizer(), 0
        for at, token in enumerate(ids):
            opens = detokenizer.is_opening
            if at == 0 or at > len(scored):
                self._row(self._name(token, opens=opens), None, None, offset)
            else:
                self.add(scored[at - 1], offset, opens=opens)
            offset += len(detokenizer.feed((token,)))

    def add(self, scored: TokenLogprobs, offset: int, *, opens: bool) -> None:
        """One token; the chosen one is among the alternatives, if any were asked for."""
        name = self._name(scored.token, opens=opens)
        top = {
            self._name(token, opens=opens): finite(logprob)
            for token, logprob in zip(scored.top_tokens, scored.top_logprobs, strict=True)
        }
        if top:
            top.setdefault(name, finite(scored.logprob))
        self._row(name, finite(scored.logprob), top, offset)

    def _name(self, token: int, *, opens: bool) -> str:
        return token_name(self._tokenizer.piece(token, opens=opens))

    def _row(
        self, name: str, logprob: float | None, top: dict[str, float] | None, offset: int
    ) -> None:
        fields = self.fields
        fields["tokens"].append(name)
        fields["token_logprobs"].append(logprob)
        fields["top_logprobs"].append(top)
        fields["text_offset"].append(offset)
