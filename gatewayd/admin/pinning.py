"""Pinning of prompts in the prefix caches, encoded as requests are."""

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
"""Maximum duration of a pin, after which a forgotten one ends."""


class Pinning:
    """Pins the cached prefix of prompts.

    Args:
        text: encodes prompts as it does for requests.
        fleet: the engines.
    """

    def __init__(self, text: TextModel, fleet: EngineFleet) -> None:
        self._text = text
        self._fleet = fleet

    async def pin(self, body: PinBody, who: str) -> PinAnswer:
        """Pin the cached prefix of a prompt, or unpin it.

        Raises:
            GatewayError: the prompt, time or model is not valid, or pins are not supported.
        """
        if not 0 <= body.seconds <= MOST_SECONDS:
            raise InvalidRequest(
                f"seconds is {body.seconds:g}; it must be from 0, which unpins, to "
                f"{MOST_SECONDS:g}",
                param="seconds",
            )
        # Its vocabulary and context length are known once an engine has loaded it.
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
            # A generation prompt would not be shared with the following turn.
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
