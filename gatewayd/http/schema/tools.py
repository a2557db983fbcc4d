"""The tools that a request offers, and whether the model must call one."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from gatewayd_hooks.requests.fields import MAX_TOOLS, ToolName
from gatewayd_hooks.requests.tables import RequestTable


class FunctionSpec(RequestTable):
    """A function that the model may call."""

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
    """A tool; only functions are served."""

    type: Literal["function"]
    function: FunctionSpec

    def for_template(self) -> dict[str, Any]:
        """As chat templates know it."""
        return function_for_template(self.function)


def function_for_template(function: FunctionSpec) -> dict[str, Any]:
    """A function as chat templates know tools: what the client said of it, in one order."""
    shown: dict[str, Any] = {"name": function.name}
    if function.description is not None:
        shown["description"] = function.description
    if function.parameters is not None:
        shown["parameters"] = function.parameters
    return {"type": "function", "function": shown}


class NamedFunction(RequestTable):
    """The name of a function."""

    name: ToolName


class NamedTool(RequestTable):
    """A tool by its name."""

    type: Literal["function"]
    function: NamedFunction


class AllowedList(RequestTable):
    """Some of the tools."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(fail_fast=True, min_length=1, max_length=MAX_TOOLS)]


class AllowedTools(RequestTable):
    """Some of the tools, of which the model may or must call."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedList


def _spelled(value: object) -> object:
    """Spellings of other APIs: ``any``, and an object around one word."""
    if isinstance(value, dict) and value.keys() == {"type"}:
        value = value["type"]
    return "required" if value == "any" else value


ToolChoice = Annotated[
    Literal["none", "auto", "required"]
    | Annotated[NamedTool | AllowedTools, Field(discriminator="type")],
    BeforeValidator(_spelled),
]
FunctionChoice = Literal["none", "auto"] | NamedFunction
