"""Tokens of an answer and its prompt, with ids and log-probabilities, for protocol plugins."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Sequence

from gatewayd.http.openai.wire import finite, token_text
from gatewayd.pipeline.choice_types import ScoredToken
from gatewayd.text.tokenizer import Tokenizer
from gatewayd_engine.process.messages import TokenLogprobs
from gatewayd_hooks.protocols import AnswerToken


class AnswerTokenReader:
    """Tokens of one text, in order: a character belongs to the token that completes it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = getincrementaldecoder("utf-8")(errors="replace")

    def read(self, scored: Sequence[ScoredToken]) -> list[AnswerToken]:
        """Return the next generated tokens."""
        return [self._token(token, opens=opens) for token, _, _, opens in scored]

    def read_prompt(self, ids: Sequence[int], scored: Sequence[TokenLogprobs]) -> list[AnswerToken]:
        """Return a prompt's tokens.

        Args:
            ids: of the whole prompt.
            scored: log-probabilities from the second token on; nothing for an unscored prompt.
        """
        if not scored:
            return []
        first = AnswerToken(ids[0], self._text(ids[0], opens=True), None, self._is_special(ids[0]))
        return [first, *(self._token(token, opens=False) for token in scored)]

    def _token(self, scored: TokenLogprobs, *, opens: bool) -> AnswerToken:
        piece = self._tokenizer.piece
        return AnswerToken(
            scored.token,
            self._text(scored.token, opens=opens),
            finite(scored.logprob),
            self._is_special(scored.token),
            [
                AnswerToken(
                    *(one, token_text(piece(one, opens=opens)), finite(logprob)),
                    is_special=self._is_special(one),
                )
                for one, logprob in zip(scored.top_tokens, scored.top_logprobs, strict=True)
            ],
        )

    def _is_special(self, token: int) -> bool:
        return token in self._tokenizer.special_ids

    def _text(self, token: int, *, opens: bool) -> str:
        piece = self._tokenizer.piece(token, opens=opens)
        # Special tokens end nothing: a character goes on behind them.
        return token_text(piece) if self._is_special(token) else self._decoder.decode(piece)
