"""Parsers of what a model says: its reasoning, its tool calls, and the text between.

Both kinds run in the gateway process, a parser of its own for each answer. They are given text
as it comes, in pieces of any length, and tell what it is as soon as that is certain.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from gatewayd_hooks.guiding import GuideSpec
from gatewayd_hooks.strategy import Strategy

if TYPE_CHECKING:
    from gatewayd_hooks.resources import GatewayResources


class Text(NamedTuple):
    """What is said to the user; never empty."""

    text: str


class Reasoning(NamedTuple):
    """What was thought before; never empty."""

    text: str


class ToolCall(NamedTuple):
    """A call of a tool begins.

    Attributes:
        call: which of the answer, from 0.
        name: of the function.
    """

    call: int
    name: str


class Arguments(NamedTuple):
    """A piece of a call's arguments, which are JSON when put together; never empty."""

    call: int
    text: str


class Bounds(NamedTuple):
    """The marks around what an answer says first, its reasoning.

    Attributes:
        begin: with which the answer begins if it reasons; empty where the prompt has begun it.
        end: that ends it; not empty.
    """

    begin: str
    end: str


Part = Text | Reasoning | ToolCall | Arguments


class OutputParser(Protocol):
    """Reads one answer.

    What it tells depends on the text and not on how it was cut, and it loses nothing: text that is
    no mark, and no space beside one, is in some part. A call that was told stays told, even if its
    arguments break off.
    """

    def feed(self, text: str) -> Sequence[Part]:
        """Take what was said next."""

    def finish(self) -> Sequence[Part]:
        """The answer has ended: what was held back. Calls that were not told are text."""


class Tool(NamedTuple):
    """A function that the model may call.

    Attributes:
        name: of the function.
        description: of it; may be empty.
        parameters: a JSON Schema of its arguments, or None for any object.
        strict: whether arguments must follow the schema.
    """

    name: str
    description: str
    parameters: dict[str, Any] | None
    strict: bool


class ToolParserStrategy(Strategy, Protocol):
    """How a family of models writes tool calls."""

    def open(self, resources: GatewayResources) -> None:
        """Look at the model's template, where the family has several."""

    @property
    def marks(self) -> Sequence[str]:
        """What it must see where a tokenizer has it as a special token, which has no text else."""

    def suits(self, chat_template: str) -> bool:
        """Whether a model with this template writes calls in this way."""

    def parser(self, tools: Sequence[Tool]) -> OutputParser:
        """Make a parser for one answer; its text comes after reasoning was taken out.

        Args:
            tools: that were offered.
        """

    def call_id(self, unique: str) -> str:
        """The id of a call as the model's template takes it.

        Args:
            unique: an id from anywhere; given back where the template takes any, and where it is an
                id that this has made.
        """

    def guide(self, tools: Sequence[Tool], *, required: bool, parallel: bool) -> GuideSpec:
        """What an answer must follow so that its calls can be read and fit their schemas.

        Args:
            tools: that may be called.
            required: whether there must be a call, and nothing else.
            parallel: whether there may be several.
        """


class ReasoningParserStrategy(Strategy, Protocol):
    """How a family of models marks its reasoning."""

    def open(self, resources: GatewayResources) -> None:
        """Look at the model's template, where the family has several."""

    @property
    def marks(self) -> Sequence[str]:
        """As for tools."""

    def suits(self, chat_template: str) -> bool:
        """Whether a model with this template reasons in this way."""

    def parser(self, prompt_end: str) -> OutputParser:
        """Make a parser for one answer.

        Args:
            prompt_end: the last characters of the prompt: some templates open the reasoning.
        """

    def bounds(self, prompt_end: str) -> Bounds | None:
        """Between which marks an answer may reason: a grammar that it must follow begins behind.

        Args:
            prompt_end: as for ``parser``.

        Returns:
            None if it does not reason: the grammar then begins with the answer.
        """
