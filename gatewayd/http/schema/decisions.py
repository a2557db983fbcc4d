"""Request schema of ``POST /v1/decisions``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from gatewayd_hooks.requests.fields import (
    MAX_ID,
    MAX_MESSAGES,
    CacheSalt,
    Model,
    Priority,
    PriorityNumber,
    ServiceTier,
)
from gatewayd_hooks.requests.tables import Noted, OrNull, RequestTable

MAX_QUESTIONS = 400
MAX_LABELS = 255
MAX_LABELS_TOGETHER = 8192

_ID = Annotated[str, Field(min_length=1, max_length=MAX_ID)]
_Name = Annotated[str, Field(max_length=MAX_ID)]
_Data = dict[str, Any] | Annotated[list[dict[str, Any]], Field(fail_fast=True)]


class DecisionPart(RequestTable):
    """Content part: text or JSON; images are refused."""

    type: Literal["input_text", "input_json", "input_image", "output_text", "refusal"]
    text: str | None = None
    data: _Data | None = None
    refusal: str | None = None
    image_url: str | None = None
    prompt_cache_breakpoint: Annotated[Any, Noted()] = None


Parts = Annotated[list[DecisionPart], Field(fail_fast=True, min_length=1, max_length=1024)]


class DecisionItem(RequestTable):
    """A message, a tool call, or the output of a tool call."""

    type: Annotated[
        Literal[
            "message",
            "function_call",
            "function_call_output",
            "custom_tool_call",
            "custom_tool_call_output",
        ],
        OrNull(),
    ] = "message"
    role: Literal["user", "developer", "system", "assistant"] | None = None
    content: str | Parts | None = None
    call_id: _ID | None = None
    name: _ID | None = None
    arguments: str | None = None
    input: str | None = None
    output: str | Parts | None = None

    @property
    def missing(self) -> str | None:
        """Name of a missing field that this type of item requires, or None."""
        needed = {
            "message": ("role", "content"),
            "function_call": ("call_id", "name", "arguments"),
            "custom_tool_call": ("call_id", "name", "input"),
        }.get(self.type, ("call_id", "output"))
        return next((name for name in needed if getattr(self, name) is None), None)


class ChoiceOption(RequestTable):
    """Option of a choice question."""

    value: str | bool
    description: str | None = None


class ScoreLevel(RequestTable):
    """Level of a score question; its value is its index, from 0."""

    label: Annotated[str, Field(min_length=1)]
    description: str | None = None


class Predicate(RequestTable):
    """Question whether a statement is true."""

    type: Literal["predicate"]
    instructions: str | Parts
    name: _Name | None = None


class ChoiceQuestion(RequestTable):
    """Question which of several choices applies."""

    type: Literal["choice"]
    instructions: str | Parts
    choices: Annotated[
        list[ChoiceOption], Field(fail_fast=True, min_length=2, max_length=MAX_LABELS)
    ]
    name: _Name | None = None


class ScoreQuestion(RequestTable):
    """Question for a score among ordered levels."""

    type: Literal["score"]
    instructions: str | Parts
    levels: Annotated[list[ScoreLevel], Field(fail_fast=True, min_length=2, max_length=MAX_LABELS)]
    name: _Name | None = None


def _kind(value: object) -> str | None:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return f"a {kind}" if isinstance(kind, str) else None


Question = Annotated[
    Annotated[Predicate, Tag("a predicate")]
    | Annotated[ChoiceQuestion, Tag("a choice")]
    | Annotated[ScoreQuestion, Tag("a score")],
    Discriminator(
        _kind,
        custom_error_type="question_type",
        custom_error_message="an object of type predicate, choice or score is expected",
    ),
]


class DecisionRequest(RequestTable):
    """Request to answer questions about an input."""

    model: Model
    input: Annotated[
        Annotated[str, Field(min_length=1)]
        | Annotated[
            list[DecisionItem], Field(fail_fast=True, min_length=1, max_length=MAX_MESSAGES)
        ],
        Field(
            description="A string, or items: `message`, `function_call`, `function_call_output`, "
            "`custom_tool_call`, `custom_tool_call_output`; content parts are text or JSON."
        ),
    ]
    questions: Annotated[
        list[Question],
        Field(
            fail_fast=True,
            min_length=1,
            max_length=MAX_QUESTIONS,
            description="Of type `predicate`, `choice` (2 to 255 `choices`) or `score` (2 to 255 "
            "`levels`), each with `instructions` and perhaps a `name`; at most "
            f"{MAX_LABELS_TOGETHER} choices and levels together, a predicate has two.",
        ),
    ]
    prompt_cache_key: Annotated[str | None, Field(max_length=1024, description="As in chat.")] = (
        None
    )
    prompt_cache_options: Annotated[Any, Noted()] = None
    cache_salt: Annotated[
        CacheSalt | None,
        Field(description="Only requests with the same salt share the prefix cache."),
    ] = None
    priority: Annotated[
        Priority | PriorityNumber | None,
        Field(description="Priority class, as in chat; overrides `service_tier`."),
    ] = None
    service_tier: Annotated[ServiceTier | None, Field(description="As in chat.")] = None
    safety_identifier: Annotated[
        str | None,
        Noted(),
        Field(max_length=512, description="Identifier of the end user; not used."),
    ] = None
    user: Annotated[
        str | None,
        Noted(),
        Field(max_length=512, description="Identifier of the end user; not used."),
    ] = None
