"""What an operator wants kept in the prefix cache, as token ids."""

from __future__ import annotations

import logging

from gatewayd.engines.fleet import EngineFleet
from gatewayd.engines.pins import PinRefused
from gatewayd.errors import ContextLengthExceeded, EngineUnavailable, InvalidRequest
from gatewayd.http.openai.sampling import check_ids
from gatewayd.text.text_model import TextModel
from gatewayd.wire.requests import PinAnswer, PinBody
from gatewayd_engine.process.messages import ModelInfo

_log = logging.getLogger(__name__)
MOST_SECONDS = 7 * 24 * 3600.0
"""Of a pin: one that is forgotten ends by itself."""


class Pinning:
    """Pins prompts.

    Args:
        text: encodes them as requests are encoded.
        fleet: the engines.
    """

    def __init__(self, text: TextModel, fleet: EngineFleet) -> None:
        self._text = text
        self._fleet = fleet

    async def pin(self, body: PinBody, who: str) -> PinAnswer:
        """Pin what is cached of a prompt, or let go of it.

        Raises:
            GatewayError: there is no such prompt, time or model, or pins are not known.
        """
        if not 0 <= body.seconds <= MOST_SECONDS:
            raise InvalidRequest(
                f"seconds is {body.seconds:g}; it must be from 0, which unpins, to "
                f"{MOST_SECONDS:g}",
                param="seconds",
            )
        model = self._fleet.model
        if model is None:
            raise EngineUnavailable("the model is not loaded yet; try again", retry_after=2)
        ids = await self._encode(body, model)
        try:
            pinned = await self._fleet.pins.pin(ids, body.seconds)
        except PinRefused as refusal:
            raise InvalidRequest(str(refusal), param="eviction") from refusal
        what = f"{max(pinned.values())} of {len(ids)} tokens" if ids else "everything"
        how = f"pinned for {body.seconds:g} s" if body.seconds else "unpinned"
        _log.warning("prefix cache: %s %s by %s", what, how, who)
        return PinAnswer(len(ids), {str(index): tokens for index, tokens in pinned.items()})

    async def _encode(self, body: PinBody, model: ModelInfo) -> list[int]:
        if body.prompt is not None and body.messages is not None:
            raise InvalidRequest("send either prompt or messages", param="prompt")
        limit = model.max_model_len
        if body.messages is not None:
            param = "messages"
            turns = [
                {"role": "system" if m.role == "developer" else m.role, "content": m.content}
                for m in body.messages
            ]
            # What the next turn adds would not be shared.
            ids = await self._text.encode_chat(turns, limit=limit, add_generation_prompt=False)
        elif body.prompt is not None:
            param = "prompt"
            if isinstance(body.prompt, str):
                ids = await self._text.encode_prompt(body.prompt, limit=limit)
            else:
                ids = body.prompt
                check_ids(ids, model.vocab_size, "prompt")
        elif body.seconds:
            raise InvalidRequest("send a prompt or messages to pin", param="prompt")
        else:
            return []
        if not ids:
            raise InvalidRequest(f"{param} is empty", param=param)
        if len(ids) > limit:
            raise ContextLengthExceeded(
                f"{param} has {len(ids)} tokens; the model's context is {limit}", param=param
            )
        return ids
