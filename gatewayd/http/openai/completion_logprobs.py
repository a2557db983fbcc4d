"""The older shape of log-probabilities: four columns, of a prompt or of what follows it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from gatewayd.http.asgi import encode_entries
from gatewayd.http.openai.wire import finite, token_name
from gatewayd.text.tokenizer import Tokenizer
from gatewayd_engine.process.messages import TokenLogprobs


class Columns:
    """Rows of tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.fields: dict[str, list[Any]] = {
            "tokens": [],
            "token_logprobs": [],
            "top_logprobs": [],
            "text_offset": [],
        }

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

    def add_unscored(self, token: int, offset: int, *, opens: bool) -> None:
        """One token without a probability."""
        self._row(self._name(token, opens=opens), None, None, offset)

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


class PromptColumns:
    """Those of a prompt, as JSON: made once for all its choices, perhaps in a thread.

    Attributes:
        num_told: choices that have them.
    """

    def __init__(
        self, tokenizer: Tokenizer, ids: Sequence[int], scored: list[TokenLogprobs]
    ) -> None:
        """Nothing comes before the first token, so it has no probability.

        Args:
            tokenizer: of the model.
            ids: the prompt.
            scored: of its tokens from the second on; empty afterwards.
        """
        # A thread that makes or frees all of a long prompt in one go keeps the interpreter from
        # the event loop: rows are taken and encoded few at a time.
        scored.reverse()
        detokenizer, offset = tokenizer.detokenizer(), 0
        columns = Columns(tokenizer)
        for at, token in enumerate(ids):
            opens = detokenizer.is_opening
            if at == 0 or not scored:
                columns.add_unscored(token, offset, opens=opens)
            else:
                columns.add(scored.pop(), offset, opens=opens)
            offset += len(detokenizer.feed((token,)))
        self._entries = {name: encode_entries(column) for name, column in columns.fields.items()}
        self.num_told = 0

    def before(self, rest: Columns) -> msgspec.Raw:
        """All columns, with others after these."""
        parts, opening = [], b"{"
        for name, entries in self._entries.items():
            after = encode_entries(rest.fields[name])
            parts += [opening, b'"%b":[' % name.encode(), entries, b"," if after else b"", after]
            opening = b"],"
        return msgspec.Raw(b"".join([*parts, b"]}"]))
