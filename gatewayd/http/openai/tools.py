"""Tools of a chat request: validation across fields, and the constraint on the output."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from gatewayd.errors import InvalidRequest, StrategyUnavailable
from gatewayd.http.openai.structural_tags import either
from gatewayd.http.openai.structured_output import OutputConstraint, json_schema, output_constraint
from gatewayd.http.schema.chat import ChatRequest
from gatewayd.http.schema.tools import (
    AllowedTools,
    FunctionSpec,
    NamedFunction,
    NamedTool,
    function_for_template,
)
from gatewayd.plugins.parsers import FencedParser, ModelParsers
from gatewayd_hooks.guiding import GuideSpec
from gatewayd_hooks.parsing import Tool, ToolParserStrategy


class ToolOffer(NamedTuple):
    """Tools that the model may call.

    Attributes:
        shown: tools in the chat template's format.
        tools: callable tools; those shown that ``allowed_tools`` does not exclude.
        constraint: on the output; None for unconstrained output.
        most_calls: maximum of tool calls returned; None for all.
    """

    shown: Sequence[dict[str, Any]] = ()
    tools: Sequence[Tool] = ()
    constraint: OutputConstraint | None = None
    most_calls: int | None = None


class _Choice(NamedTuple):
    """Parsed ``tool_choice``.

    Attributes:
        is_off: whether calls are disabled.
        must: whether a call is required.
        names: of the callable tools; None for all.
    """

    is_off: bool = False
    must: bool = False
    names: tuple[str, ...] | None = None


def tool_offer(request: ChatRequest, parsers: ModelParsers, *, takes_tools: bool) -> ToolOffer:
    """Validate the tool fields of a request and build the offer.

    Args:
        request: validated against its schema.
        parsers: of the model.
        takes_tools: whether the model's chat template renders tools.

    Raises:
        InvalidRequest: fields are inconsistent, or the model does not support tools.
    """
    functions, param = _functions(request)
    choice, choice_param = _choice(request)
    form = output_constraint(request)
    nothing = ToolOffer(constraint=form)
    if not functions:
        if choice.must or choice.names is not None:
            raise InvalidRequest(f"{choice_param} needs {param}", param=choice_param)
        return nothing
    _check_names(functions, choice, param, choice_param)
    if choice.is_off:
        return nothing
    if parsers.tools is None or not takes_tools:
        what = "chat template ignores tools" if not takes_tools else "tool calls have no parser"
        raise InvalidRequest(
            f"{param} is not supported: this model's {what}"
            + ("" if not takes_tools else "; see [tool_parser] of the server's configuration"),
            param=param,
            code="unsupported_parameter",
        )
    tools = [
        Tool(one.name, one.description or "", one.parameters, bool(one.strict))
        for one in functions
        if choice.names is None or one.name in choice.names
    ]
    is_single = choice.must and choice.names is not None and not _is_allowed_list(request)
    is_single = is_single or request.parallel_tool_calls is False or bool(request.functions)
    is_kept = choice.must or choice.names is not None
    constraint = None
    if is_kept or form is not None or any(tool.strict for tool in tools):
        # Optional calls of non-strict tools may have any arguments, as without a guide.
        kept = [
            one if choice.must or one.strict else one._replace(parameters=None) for one in tools
        ]
        # With a constraint on text, the output is calls or such text; if calls are required, there
        # is no text.
        required = choice.must or form is not None
        spec = _guide(parsers.tools, kept, param, required=required, parallel=not is_single)
        constraint = OutputConstraint(spec, choice_param if is_kept else param)
        if form is not None and not choice.must:
            constraint = _calls_or(form, spec)
        constraint = constraint._replace(parts=partial(_schemas, functions, kept, param))
    return ToolOffer(
        shown=[function_for_template(one) for one in functions],
        tools=tools,
        constraint=constraint,
        most_calls=1 if is_single else None,
    )


def _guide(
    parser: FencedParser[ToolParserStrategy],
    tools: Sequence[Tool],
    param: str,
    *,
    required: bool,
    parallel: bool,
) -> GuideSpec:
    make = partial(parser.strategy.guide, required=required, parallel=parallel)
    try:
        spec: GuideSpec = parser.call("guide", make, tools)
    except RecursionError:
        raise InvalidRequest(f"{param} are nested too deeply", param=param) from None
    except Exception as error:
        raise StrategyUnavailable(f"the tool parser {parser.name} failed on {param}") from error
    return spec


def _schemas(
    functions: Sequence[FunctionSpec], kept: Sequence[Tool], param: str
) -> tuple[tuple[GuideSpec, str], ...]:
    """Return the schemas that constrain arguments, with their paths in the request."""
    names = {tool.name for tool in kept if tool.parameters is not None}
    inner = ".function.parameters" if param == "tools" else ".parameters"
    return tuple(
        (json_schema(one.parameters), f"{param}[{at}]{inner}")
        for at, one in enumerate(functions)
        if one.name in names and one.parameters is not None
    )


def _calls_or(form: OutputConstraint, calls: GuideSpec) -> OutputConstraint:
    """Combine the text's constraint with calls; if impossible, the guide check will refuse it."""
    try:
        both = either(form.spec, calls)
        return OutputConstraint(both._replace(is_compact=form.spec.is_compact), form.param)
    except (ValueError, RecursionError):
        return form  # refused later, by the guide check


def _functions(request: ChatRequest) -> tuple[Sequence[FunctionSpec], str]:
    if request.tools:
        if request.functions:
            raise InvalidRequest("send either tools or functions", param="functions")
        return [tool.function for tool in request.tools], "tools"
    if request.functions:
        return request.functions, "functions"
    return (), "tools"


def _choice(request: ChatRequest) -> tuple[_Choice, str]:
    chosen = request.tool_choice
    if chosen is None and request.function_call is not None:
        legacy = request.function_call
        if isinstance(legacy, NamedFunction):
            return _Choice(must=True, names=(legacy.name,)), "function_call"
        return _Choice(is_off=legacy == "none"), "function_call"
    if isinstance(chosen, NamedTool):
        return _Choice(must=True, names=(chosen.function.name,)), "tool_choice"
    if isinstance(chosen, AllowedTools):
        allowed = chosen.allowed_tools
        names = tuple(tool.function.name for tool in allowed.tools)
        return _Choice(must=allowed.mode == "required", names=names), "tool_choice"
    return _Choice(is_off=chosen == "none", must=chosen == "required"), "tool_choice"


def _is_allowed_list(request: ChatRequest) -> bool:
    return isinstance(request.tool_choice, AllowedTools)


def _check_names(
    functions: Sequence[FunctionSpec], choice: _Choice, param: str, choice_param: str
) -> None:
    names = [one.name for one in functions]
    for at, name in enumerate(names):
        if name in names[:at]:
            raise InvalidRequest(f"{param}[{at}] repeats the name {name!r}", param=param)
    for name in choice.names or ():
        if name not in names:
            known = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
            raise InvalidRequest(
                f"{choice_param} names {name!r}, which is not among the {param}: {known}",
                param=choice_param,
            )
