"""Output parsers, which separate reasoning, tool calls and text in a model's output.

Both kinds run in the gateway process, with one parser instance per answer. They are fed text as it
is generated, in pieces of any length, and return parts as soon as these are certain.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from gatewayd_hooks.guiding import GuideSpec
from gatewayd_hooks.strategy import Strategy

if TYPE_CHECKING:
    from gatewayd_hooks.resources import GatewayResources


class Text(NamedTuple):
    """Text for the user; never empty."""

    text: str


class Reasoning(NamedTuple):
    """Reasoning text; never empty."""

    text: str


class ToolCall(NamedTuple):
    """Start of a tool call.

    Attributes:
        call: index of the call within the answer, from 0.
        name: of the function.
        id: as an upstream gave it; empty for the gateway to give one. New in 1.29.
    """

    call: int
    name: str
    id: str = ""


class Arguments(NamedTuple):
    """Piece of a call's arguments, whose concatenation is JSON; never empty."""

    call: int
    text: str


class Bounds(NamedTuple):
    """Delimiters of the reasoning at the beginning of an answer.

    Attributes:
        begin: text with which the answer begins if it reasons; empty if the prompt ends with it.
        end: text that ends the reasoning; not empty.
    """

    begin: str
    end: str


Part = Text | Reasoning | ToolCall | Arguments


class OutputParser(Protocol):
    """Incremental parser of one answer.

    Its parts depend on the text and not on how it was split, and no text is lost: all text except
    delimiters and whitespace next to them is in some part. A call that was returned is not taken
    back, even if its arguments break off.
    """

    def feed(self, text: str) -> Sequence[Part]:
        """Parse the next piece of text."""

    def finish(self) -> Sequence[Part]:
        """Return what was held back at the end of the answer; incomplete calls become text."""


class Tool(NamedTuple):
    """Function that the model may call.

    Attributes:
        name: of the function.
        description: of the function; may be empty.
        parameters: a JSON Schema of its arguments, or None for any object.
        strict: whether arguments must follow the schema.
    """

    name: str
    description: str
    parameters: dict[str, Any] | None
    strict: bool


class ToolParserStrategy(Strategy, Protocol):
    """Tool call format of a family of models."""

    def open(self, resources: GatewayResources) -> None:
        """Inspect the model's chat template, where the family has several."""

    @property
    def marks(self) -> Sequence[str]:
        """Special tokens that must be decoded as text for the parser to see them."""

    def suits(self, chat_template: str) -> bool:
        """Whether a model with this template writes calls in this format."""

    def parser(self, tools: Sequence[Tool]) -> OutputParser:
        """Create a parser for one answer, whose reasoning has been removed.

        Args:
            tools: tools offered to the model.
        """

    def call_id(self, unique: str) -> str:
        """Return the id of a call in the format that the model's template requires.

        Args:
            unique: an arbitrary id; returned unchanged if the template accepts any, or if it has
                this format already.
        """

    def guide(self, tools: Sequence[Tool], *, required: bool, parallel: bool) -> GuideSpec:
        """Return the constraint with which an answer's calls can be parsed and match their schemas.

        Args:
            tools: that may be called.
            required: whether the answer must consist of calls alone.
            parallel: whether there may be several.
        """


class ReasoningParserStrategy(Strategy, Protocol):
    """Reasoning format of a family of models."""

    def open(self, resources: GatewayResources) -> None:
        """Inspect the model's chat template, where the family has several."""

    @property
    def marks(self) -> Sequence[str]:
        """Special tokens that must be decoded as text, as for tool call parsers."""

    def suits(self, chat_template: str) -> bool:
        """Whether a model with this template reasons in this format."""

    def parser(self, prompt_end: str) -> OutputParser:
        """Create a parser for one answer.

        Args:
            prompt_end: the last characters of the prompt: some templates open the reasoning.
        """

    def bounds(self, prompt_end: str) -> Bounds | None:
        """Return the delimiters of the reasoning; a guided answer's grammar begins after it.

        Args:
            prompt_end: as for ``parser``.

        Returns:
            None if it does not reason: the grammar then applies from the start of the answer.
        """
