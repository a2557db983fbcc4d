"""Log-probabilities in the legacy format of four columns, of prompts and completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gatewayd.http.asgi import encode_entries
from gatewayd.http.openai.wire import finite, local, token_name
from gatewayd.text.tokenizer import Tokenizer
from gatewayd_engine.process.messages import TokenLogprobs


class LogprobColumnsBuilder:
    """Columns of log-probabilities, one entry per token."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self.fields: dict[str, list[Any]] = {
            "tokens": [],
            "token_logprobs": [],
            "top_logprobs": [],
            "text_offset": [],
        }

    def add(self, scored: TokenLogprobs, offset: int, *, opens: bool) -> None:
        """Add a token; the sampled one is included in the alternatives, if any are requested."""
        name = self._name(scored.token, opens=opens)
        top = {
            self._name(token, opens=opens): finite(logprob)
            for token, logprob in zip(scored.top_tokens, scored.top_logprobs, strict=True)
        }
        if top:
            top.setdefault(name, finite(scored.logprob))
        self._row(name, finite(scored.logprob), top, offset)

    def add_relayed(self, shown: Mapping[str, Any], offset: int) -> None:
        """Add a token of an upstream, from OpenAI's object of it."""
        top = {one["token"]: one["logprob"] for one in shown["top_logprobs"]}
        self._row(shown["token"], shown["logprob"], top, offset)

    def add_unscored(self, token: int, offset: int, *, opens: bool) -> None:
        """Add a token without a log-probability."""
        self._row(self._name(token, opens=opens), None, None, offset)

    def _name(self, token: int, *, opens: bool) -> str:
        return token_name(local(self._tokenizer).piece(token, opens=opens))

    def _row(
        self, name: str, logprob: float | None, top: dict[str, float] | None, offset: int
    ) -> None:
        fields = self.fields
        fields["tokens"].append(name)
        fields["token_logprobs"].append(logprob)
        fields["top_logprobs"].append(top)
        fields["text_offset"].append(offset)


class PromptColumns:
    """Columns of a prompt, encoded once for all its choices, possibly in a thread.

    Attributes:
        num_written: number of choices that have written them.
    """

    def __init__(
        self, tokenizer: Tokenizer, ids: Sequence[int], scored: list[TokenLogprobs]
    ) -> None:
        """Encode the columns; the first token of a prompt has no log-probability.

        Args:
            tokenizer: of the model.
            ids: the prompt.
            scored: log-probabilities of its tokens from the second on; consumed.
        """
        # Allocating or freeing the rows of a long prompt at once would hold the GIL and block the
        # event loop, so rows are popped and encoded a few at a time.
        scored.reverse()
        detokenizer, offset = tokenizer.detokenizer(), 0
        columns = LogprobColumnsBuilder(tokenizer)
        for at, token in enumerate(ids):
            opens = detokenizer.is_opening
            if at == 0 or not scored:
                columns.add_unscored(token, offset, opens=opens)
            else:
                columns.add(scored.pop(), offset, opens=opens)
            offset += len(detokenizer.feed((token,)))
        self._entries = {name: encode_entries(column) for name, column in columns.fields.items()}
        self.num_written = 0

    def before(self, rest: LogprobColumnsBuilder) -> msgspec.Raw:
        """Return the encoded columns, followed by those of the completion."""
        parts, opening = [], b"{"
        for name, entries in self._entries.items():
            after = encode_entries(rest.fields[name])
            parts += [opening, b'"%b":[' % name.encode(), entries, b"," if after else b"", after]
            opening = b"],"
        return msgspec.Raw(b"".join([*parts, b"]}"]))
