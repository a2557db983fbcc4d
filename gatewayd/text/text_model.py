"""Tokenizer and chat template of a served model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from gatewayd.errors import ContextLengthExceeded, InvalidRequest
from gatewayd.text.special_tokens import SpecialTokenEscaper, any_text
from gatewayd.text.template import ChatTemplate
from gatewayd.text.tokenizer import Tokenizer


class ChatText(NamedTuple):
    """A rendered conversation.

    Attributes:
        size: its length in characters.
        encode: returns its token ids; slow for long conversations.
        is_marked: whether ``encode`` renders the conversation again, and refers to it until then.
    """

    size: int
    encode: Callable[[], list[int]]
    is_marked: bool = False


@dataclass(frozen=True, slots=True)
class TextModel:
    """Renders and encodes messages and prompts to token ids.

    Attributes:
        tokenizer: of the model.
        template: chat template; None if the model has none and so cannot chat.
    """

    tokenizer: Tokenizer
    template: ChatTemplate | None

    @classmethod
    def from_folder(cls, folder: Path) -> TextModel:
        """Read both from a checkpoint's folder.

        Raises:
            FileNotFoundError: there is no ``tokenizer.json``.
            ValueError: a file is invalid.
        """
        return cls(Tokenizer.from_folder(folder), ChatTemplate.from_folder(folder))

    async def encode_prompt(
        self, text: str, *, limit: int, add_special: bool = True, param: str = "prompt"
    ) -> list[int]:
        """Encode a prompt; spelled special tokens are encoded as ordinary text.

        Args:
            text: the prompt.
            limit: context length in tokens, to refuse far longer prompts without encoding them.
            add_special: add the special tokens that the tokenizer puts around a text, such as BOS.
            param: the request's field, for the error.

        Raises:
            ContextLengthExceeded: it is certainly longer than the context.
        """
        self.check_length(text, limit, param)
        return await self.tokenizer.encode_async(text, add_special=add_special)

    async def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        limit: int,
        add_generation_prompt: bool = True,
    ) -> list[int]:
        """Render and encode messages; see ``render_chat``."""
        text = self.render_chat(messages, limit=limit, add_generation_prompt=add_generation_prompt)
        return await self.tokenizer.run_by_size(text.size, text.encode)

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        limit: int,
        tools: Sequence[Mapping[str, Any]] = (),
        add_generation_prompt: bool = True,
        is_continued: bool = False,
        arguments: Mapping[str, Any] = MappingProxyType({}),
    ) -> ChatText:
        """Render messages; special tokens spelled in them, tools or arguments are ordinary text.

        Args:
            messages: each with ``role`` and a ``content`` string.
            limit: context length in tokens, to refuse far longer prompts without encoding them.
            tools: that the model may call.
            add_generation_prompt: append the prefix of an assistant message.
            is_continued: cut the prompt where the text of the last message ends.
            arguments: additional variables of the template.

        Raises:
            InvalidRequest: the model has no chat template, or the template rejects the messages.
            ContextLengthExceeded: the prompt is certainly longer than the context.
        """
        template = self.template
        if template is None:
            raise InvalidRequest(
                "this model has no chat template; use /v1/completions", param="messages"
            )

        def render(given: Sequence[Any]) -> str:
            text = template.render(
                given[0],
                tools=given[1] or None,
                add_generation_prompt=add_generation_prompt,
                arguments=given[2],
            )
            return _cut_after_message(text, given[0][-1]["content"]) if is_continued else text

        given = (messages, tools, arguments)
        text = render(given)
        self.check_length(text, limit, "messages")
        try:
            spells_special = any_text(given, self.tokenizer.spells_special)
        except RecursionError:
            raise InvalidRequest("messages or tools are nested too deeply", param="tools") from None
        if not spells_special:
            # Special tokens in this text are all the template's.
            return ChatText(len(text), lambda: self.tokenizer.encode(text, trusted=True))
        # Rendering again takes time, so it is left to `encode`, which runs in a thread if long.
        return ChatText(len(text), lambda: self._encode_marked(render, given), is_marked=True)

    def _encode_marked(self, render: Callable[[Sequence[Any]], str], given: object) -> list[int]:
        """Render and encode values in which special tokens are spelled."""
        special = self.tokenizer.special_pattern
        if special is None:
            raise RuntimeError("the tokenizer has no special tokens")
        # The client's special tokens are marks while the template's are renamed, then text again.
        escaper = SpecialTokenEscaper(special, given)
        renamed = self.tokenizer.rename_special_tokens(render(escaper.escape(given)))
        return self.tokenizer.encode(escaper.unescape(renamed))

    def check_length(self, text: str, limit: int, param: str) -> None:
        """Check a text's length without encoding it.

        Raises:
            ContextLengthExceeded: it certainly has more than ``limit`` tokens.
        """
        at_least = len(text) // self.tokenizer.longest_token
        if at_least > limit:
            raise ContextLengthExceeded(
                f"the prompt has at least {at_least} tokens; the model's context is {limit}: "
                "shorten the prompt",
                param=param,
            )


def _cut_after_message(text: str, message: str) -> str:
    """Cut a rendered conversation after the text of its last message.

    Raises:
        InvalidRequest: the template does not contain the message unchanged.
    """
    # Many templates strip messages.
    for shown in (message, message.strip()):
        at = text.rfind(shown)
        if shown and at >= 0:
            return text[: at + len(shown)]
    raise InvalidRequest(
        "the model's chat template does not render the last message unchanged, so it cannot be "
        "continued; use /v1/completions",
        param="continue_final_message",
    )
