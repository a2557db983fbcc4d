"""The text side of a served model: its tokenizer and its chat template."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gatewayd.errors import ContextLengthExceeded, InvalidRequest
from gatewayd.text.template import ChatTemplate
from gatewayd.text.tokenizer import Tokenizer

_PRIVATE_USE = range(0xE000, 0xF8FF)


@dataclass(frozen=True, slots=True)
class TextModel:
    """What turns messages and prompts into token ids.

    Attributes:
        tokenizer: of the model.
        template: None where the model has none and so cannot chat.
    """

    tokenizer: Tokenizer
    template: ChatTemplate | None

    @classmethod
    def from_folder(cls, folder: Path) -> TextModel:
        """Read both from a checkpoint's folder.

        Raises:
            FileNotFoundError: there is no ``tokenizer.json``.
            ValueError: a file cannot be used.
        """
        return cls(Tokenizer.from_folder(folder), ChatTemplate.from_folder(folder))

    async def encode_prompt(
        self, text: str, *, limit: int, add_special: bool = True, param: str = "prompt"
    ) -> list[int]:
        """Encode a prompt; special tokens that it spells stay text.

        Args:
            text: the prompt.
            limit: tokens of the context, to refuse hopeless lengths without encoding them.
            add_special: add what the tokenizer puts around a text, such as BOS.
            param: the request's field, for the error.

        Raises:
            ContextLengthExceeded: it is certainly longer than the context.
        """
        self._check_length(text, limit, param)
        return await self.tokenizer.encode_async(text, add_special=add_special)

    async def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        limit: int,
        add_generation_prompt: bool = True,
    ) -> list[int]:
        """Encode messages, each with ``role`` and a ``content`` string.

        Raises:
            InvalidRequest: the model has no chat template, or the template refuses them.
            ContextLengthExceeded: they are certainly longer than the context.
        """
        if self.template is None:
            raise InvalidRequest(
                "this model has no chat template; use /v1/completions", param="messages"
            )
        text = self.template.render(messages, add_generation_prompt=add_generation_prompt)
        self._check_length(text, limit, "messages")
        if not any(map(self.tokenizer.spells_special, _texts(messages))):
            return await self.tokenizer.encode_async(text, trusted=True)
        template = self.template
        return await self.tokenizer.apart(
            len(text),
            lambda: self._encode_marked(
                template, messages, add_generation_prompt=add_generation_prompt
            ),
        )

    def _encode_marked(
        self,
        template: ChatTemplate,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool,
    ) -> list[int]:
        """Encode messages that spell special tokens.

        A numbered mark stands for each spelled token while the template writes genuine ones.
        """
        special = self.tokenizer.special_pattern
        if special is None:
            raise RuntimeError("there is nothing to mark")
        mark = _unused_character(messages)
        spelled: list[str] = []

        def hide(found: re.Match[str]) -> str:
            spelled.append(found[0])
            return f"{mark}{len(spelled) - 1}{mark}"

        hidden = [
            {
                key: special.sub(hide, value) if isinstance(value, str) else value
                for key, value in message.items()
            }
            for message in messages
        ]
        text = template.render(hidden, add_generation_prompt=add_generation_prompt)
        marked = re.compile(f"{mark}([0-9]+){mark}")
        disguised = self.tokenizer.disguise(text)
        return self.tokenizer.encode(marked.sub(lambda found: spelled[int(found[1])], disguised))

    def _check_length(self, text: str, limit: int, param: str) -> None:
        at_least = len(text) // self.tokenizer.longest_token
        if at_least > limit:
            raise ContextLengthExceeded(
                f"the prompt has at least {at_least} tokens; the model's context is {limit}: "
                "shorten the prompt",
                param=param,
            )


def _texts(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    return [value for message in messages for value in message.values() if isinstance(value, str)]


def _unused_character(messages: Sequence[Mapping[str, Any]]) -> str:
    used = set().union(*map(set, _texts(messages)))
    for code in _PRIVATE_USE:
        if chr(code) not in used:
            return chr(code)
    raise InvalidRequest("the messages use every private-use character", param="messages")
