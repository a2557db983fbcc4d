"""Schema of the tools of a request and the choice between them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from gatewayd_hooks.requests.fields import MAX_TOOLS, ToolName
from gatewayd_hooks.requests.tables import RequestTable


class FunctionSpec(RequestTable):
    """Function that the model may call."""

    name: Annotated[
        ToolName,
        Field(
            description="Name of the function: at most 128 letters, digits, `_`, "
            "`-`, `.`, `:`, `/`."
        ),
    ]
    description: Annotated[str | None, Field(description="Description for the model.")] = None
    parameters: Annotated[
        dict[str, Any] | None, Field(description="JSON schema of the arguments.")
    ] = None
    strict: Annotated[
        bool | None, Field(description="Constrain the arguments of every call to the schema.")
    ] = None


class ToolSpec(RequestTable):
    """Tool that the model may call; only functions are supported."""

    type: Literal["function"]
    function: FunctionSpec

    def for_template(self) -> dict[str, Any]:
        """Convert the tool for chat templates."""
        return function_for_template(self.function)


def function_for_template(function: FunctionSpec) -> dict[str, Any]:
    """Convert a function for chat templates: its given fields, in a fixed order."""
    shown: dict[str, Any] = {"name": function.name}
    if function.description is not None:
        shown["description"] = function.description
    if function.parameters is not None:
        shown["parameters"] = function.parameters
    return {"type": "function", "function": shown}


class NamedFunction(RequestTable):
    """Reference to a function by name."""

    name: ToolName


class NamedTool(RequestTable):
    """Reference to a tool by name."""

    type: Literal["function"]
    function: NamedFunction


class AllowedList(RequestTable):
    """Subset of the tools and the mode of their choice."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(fail_fast=True, min_length=1, max_length=MAX_TOOLS)]


class AllowedTools(RequestTable):
    """Choice from a subset of the tools, which the model may or must call."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedList


def _normalized(value: object) -> object:
    """Normalize variants of other APIs: ``any``, and an object with only a type."""
    if isinstance(value, dict) and value.keys() == {"type"}:
        value = value["type"]
    return "required" if value == "any" else value


ToolChoice = Annotated[
    Literal["none", "auto", "required"]
    | Annotated[NamedTool | AllowedTools, Field(discriminator="type")],
    BeforeValidator(_normalized),
]
FunctionChoice = Literal["none", "auto"] | NamedFunction
