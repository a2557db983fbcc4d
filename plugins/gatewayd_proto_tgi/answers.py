"""Answers of the generate API: one object, or an event for each token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from gatewayd_hooks.parsing import Text
from gatewayd_hooks.protocols import AnswerToken, Delta, RequestRefusal
from gatewayd_proto_tgi.requests import TgiRequest

Fields = dict[str, Any]

_encode = msgspec.json.Encoder().encode
_TYPES = {401: "authentication", 403: "authentication", 429: "overloaded", 503: "overloaded"}


class TgiSequence:
    """One generated sequence.

    Attributes:
        text: so far.
        tokens: so far, if they are requested.
        last: the latest delta.
    """

    def __init__(self) -> None:
        self.text = ""
        self.tokens: list[AnswerToken] = []
        self.last = Delta(0, ())

    def read(self, delta: Delta) -> None:
        """Add new output."""
        self.text += "".join([part.text for part in delta.parts if isinstance(part, Text)])
        self.tokens += delta.tokens
        self.last = delta

    @property
    def finish_reason(self) -> str:
        """``length``, ``stop_sequence`` or ``eos_token``."""
        if self.last.finish_reason == "length":
            return "length"
        return "eos_token" if self.last.stop is None else "stop_sequence"

    @property
    def mean_logprob(self) -> float:
        """Mean log-probability of its tokens; minus infinity without any."""
        found = [token.logprob for token in self.tokens if token.logprob is not None]
        return sum(found) / len(found) if found else float("-inf")

    def details(self, request: TgiRequest, num_tokens: int) -> Fields:
        """Return what answers and streams have in common."""
        return {
            "finish_reason": self.finish_reason,
            "generated_tokens": num_tokens,
            "seed": request.seed,
        }


def whole(
    request: TgiRequest,
    sequences: Sequence[TgiSequence],
    prompt: Sequence[AnswerToken],
    num_tokens: int,
) -> Fields:
    """Return an answer as one object.

    Args:
        request: that it answers.
        sequences: of which the most likely one is the answer.
        prompt: scored tokens of the prompt, if they were requested.
        num_tokens: generated tokens of all sequences.
    """
    best = max(sequences, key=lambda one: one.mean_logprob)
    answer: Fields = {"generated_text": _text(request, best)}
    if request.with_details:
        count = num_tokens if len(sequences) == 1 else len(best.tokens)
        answer["details"] = _details(request, best, prompt, count)
        if len(sequences) > 1:
            answer["details"]["best_of_sequences"] = [
                {
                    "generated_text": _text(request, one),
                    **_details(request, one, prompt, len(one.tokens)),
                }
                for one in sequences
                if one is not best
            ]
    return answer


def _details(
    request: TgiRequest, one: TgiSequence, prompt: Sequence[AnswerToken], num_tokens: int
) -> Fields:
    found = one.details(request, num_tokens) | {
        "prefill": [
            {"id": token.id, "text": token.text, "logprob": token.logprob} for token in prompt
        ],
        "tokens": [_token(token) for token in one.tokens],
    }
    if request.with_top:
        found["top_tokens"] = [[_token(top) for top in token.top] for token in one.tokens]
    return found


def _text(request: TgiRequest, one: TgiSequence) -> str:
    return request.inputs + one.text if request.returns_inputs else one.text


def _token(token: AnswerToken) -> Fields:
    return {
        "id": token.id,
        "text": token.text,
        "logprob": token.logprob,
        "special": token.is_special,
    }


class TgiEvents:
    """Events of a stream."""

    def __init__(self, request: TgiRequest) -> None:
        self._request = request
        self._sequence = TgiSequence()
        self._index = 0

    def read(self, delta: Delta, *, input_length: int, num_tokens: int) -> bytes:
        """Return the events of new output, one for each token; the last one has the whole text.

        Args:
            delta: the output.
            input_length: tokens of the prompt.
            num_tokens: generated so far.
        """
        self._sequence.read(delta)
        # Only the totals live on, not the tokens.
        self._sequence.tokens.clear()
        tokens = list(delta.tokens)
        is_last = delta.finish_reason is not None
        if is_last and not tokens:
            # The model's end-of-text token is not part of the output, but each event has a token.
            tokens = [AnswerToken(0, "", 0.0, is_special=True)]
        end: Fields = {}
        if is_last:
            found = self._sequence.details(self._request, num_tokens)
            end["generated_text"] = _text(self._request, self._sequence)
            end["details"] = found | {"input_length": input_length}
        return b"".join(self._events(tokens, end))

    def _events(self, tokens: Sequence[AnswerToken], end: Fields) -> Iterator[bytes]:
        for at, token in enumerate(tokens, start=1):
            self._index += 1
            event: Fields = {
                "index": self._index,
                "token": _token(token),
                "generated_text": None,
                "details": None,
            }
            if self._request.with_top:
                event["top_tokens"] = [_token(top) for top in token.top]
            yield encode_event(event | end if at == len(tokens) else event)


def encode_event(value: Fields) -> bytes:
    """Encode a server-sent event."""
    return b"data: %b\n\n" % _encode(value)


def error_body(refusal: RequestRefusal) -> Fields:
    """Return an error's message and type."""
    kind = "generation" if refusal.status >= 500 else "validation"
    return {"error": refusal.message, "error_type": _TYPES.get(refusal.status, kind)}
