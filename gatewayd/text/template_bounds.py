"""What rendering a template may take: turns of loops, calls, and characters.

A template is the model's, but time and memory are the daemon's, and jinja2's sandbox bounds
neither: a hundred characters can make a gigabyte, or turn for hours. What could take much at once
is looked at before it is done; what adds up is counted. Lists and tuples are counted when they are
written, with all in them: one that has itself twice, forty times, could not even be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Any, cast

from jinja2 import nodes, pass_context
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from gatewayd.text.template_meter import LOOKED_AT, WHOLE, TemplateMeter, check_bits, size

_SMALL = 1 << 12
"""A sum of so many characters is not worth counting: a loop's turns bound them."""
_CALL = 4
"""Turns that a call counts for, in time."""
_KEY = "what this rendering has taken"
"""No name that a template can write."""


def begun() -> dict[str, Any]:
    """What a rendering is given beside its variables."""
    return {_KEY: TemplateMeter()}


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox, with an end.

    Args:
        options: of jinja2.
    """

    intercepted_binops = frozenset(("*", "**", "%", "+"))

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 - jinja2's
        super().__init__(finalize=_measured, **options)
        self.globals.pop("lipsum")
        self.bound_filters()
        self.filters[_KEY] = _turning
        self.filters[_KEY + "~"] = _measured
        self.filters[_KEY + "()"] = _entered

    def bound_filters(self) -> None:
        """Bound those that are there now; once for each."""
        for name, found in self.filters.items():
            if not hasattr(found, "is_bounded"):
                self.filters[name] = _bounded(name, found)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """The template, with every loop counted and all parts of joined texts measured."""
        found = super()._parse(source, name, filename)
        _Measuring(self).visit(found)
        for loop in found.find_all(nodes.For):
            if loop.recursive:  # it goes over more than what stands there
                self._count(loop)
            else:
                own = nodes.Const(_own(loop))
                loop.iter = self.filtered(loop.iter, _KEY, own)
        for joined in found.find_all(nodes.Concat):
            joined.nodes = [self.measured(part) for part in joined.nodes]
        macros: list[nodes.Macro | nodes.CallBlock] = [*found.find_all(nodes.Macro)]
        macros += found.find_all(nodes.CallBlock)
        for macro in macros:
            self._count(macro)
        return found

    def _count(self, block: nodes.For | nodes.Macro | nodes.CallBlock) -> None:
        """Count each time that a body is begun."""
        counted = self.filtered(nodes.Const(""), _KEY + "()", nodes.Const(_own(block)))
        block.body.insert(0, nodes.Output([counted], lineno=block.lineno))

    def measured(self, node: nodes.Node) -> nodes.Filter:
        """An expression that counts what it gives."""
        return self.filtered(node, _KEY + "~")

    def filtered(self, node: nodes.Node, name: str, *arguments: nodes.Expr) -> nodes.Filter:
        """An expression behind a filter."""
        made = nodes.Filter(cast(nodes.Expr, node), name, list(arguments), [], None, None)
        made.set_lineno(node.lineno or 1)
        made.set_environment(self)
        return made

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """Call what the sandbox lets be called."""
        taken: TemplateMeter = __context.parent[_KEY]
        taken.turn(turns=_CALL)
        # A text's format is a function of the sandbox, around the method.
        method = getattr(__obj, "__wrapped__", __obj)
        owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        if isinstance(owner, str) and (name in LOOKED_AT or name == "format_map"):
            if name == "join" and len(args) == 1:
                args = ([*args[0]],)
                taken.look(name, args[0], (owner,))
            else:
                name = "format" if name == "format_map" else name
                taken.look(name, owner, (*args, *kwargs.values()))
        found = super().call(__context, __obj, *args, **kwargs)
        taken.made(found)
        if __obj is dict:
            taken.write(size(found))
        return found

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:  # noqa: ANN401
        """Compute."""
        if operator == "+":  # of most templates the only one, some for each message
            found = left + right
            if not hasattr(found, "__len__") or len(found) <= _SMALL:
                return found
            context.parent[_KEY].made(found)
            return found
        taken: TemplateMeter = context.parent[_KEY]
        if operator == "*":
            each, times = (left, right) if hasattr(left, "__len__") else (right, left)
            if hasattr(each, "__len__") and isinstance(times, int):
                taken.write((len(each) + size(each)) * max(0, times))
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            check_bits(left.bit_length() * max(0, right))
        elif operator == "%" and isinstance(left, str):
            taken.look("format", left, right if isinstance(right, tuple) else (right,))
            taken.write(size(right))
        found = super().call_binop(context, operator, left, right)
        taken.made(found)
        if isinstance(found, int):
            check_bits(found.bit_length())
        return found


class _Measuring(NodeTransformer):
    """Measures what puts values into each other: lists, tuples, objects, and what macros get."""

    def __init__(self, environment: BoundedEnvironment) -> None:
        self._environment = environment

    def visit_List(self, node: nodes.List | nodes.Tuple | nodes.Dict) -> nodes.Node:
        """One that is the same each time needs none."""
        self.generic_visit(node)
        try:
            node.as_const()
        except nodes.Impossible:
            return self._environment.measured(node)
        return node

    visit_Dict = visit_List

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        """As a list; but one of names to assign to is no value."""
        return self.visit_List(node) if node.ctx == "load" else node

    def visit_Name(self, node: nodes.Name) -> nodes.Node:
        """A macro's other arguments are a tuple, or an object."""
        is_more = node.ctx == "load" and node.name in ("varargs", "kwargs")
        return self._environment.measured(node) if is_more else node


def _own(block: nodes.Node) -> int:
    return sum(len(data.data) for data in block.find_all(nodes.TemplateData))


@pass_context
def _measured(context: Context, value: Any) -> Any:  # noqa: ANN401 - any value
    """What is written or joined, counted."""
    taken: TemplateMeter = context.parent[_KEY]
    taken.write(len(value) if isinstance(value, str) else size(value))
    return value


@pass_context
def _turning(context: Context, values: Iterable[Any], chars: int) -> Iterable[Any]:
    """What a loop goes over, counted as it goes."""
    taken: TemplateMeter = context.parent[_KEY]
    return _each(values, taken, chars)


@pass_context
def _entered(context: Context, nothing: str, chars: int) -> str:
    """The beginning of a macro's body."""
    taken: TemplateMeter = context.parent[_KEY]
    taken.turn(chars)
    return nothing


def _each(values: Iterable[Any], taken: TemplateMeter, chars: int) -> Iterator[Any]:
    for value in values:
        taken.turn(chars)
        yield value


def _bounded(name: str, filter_: Callable[..., Any]) -> Callable[..., Any]:
    passed = getattr(filter_, "jinja_pass_arg", None)
    wants = None if passed is None else passed.name
    is_looked_at, is_whole = name in LOOKED_AT, name in WHOLE

    @pass_context
    @wraps(filter_)
    def call(context: Context, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - jinja2's
        taken: TemplateMeter = context.parent[_KEY]
        value, *arguments = args
        if is_whole and not isinstance(value, str | list | tuple):
            value = [*value]
            args = (value, *arguments)
        taken.filter()
        if is_looked_at:
            taken.look(name, value, [*arguments, *kwargs.values()])
        if wants == "context":
            args = (context, *args)
        elif wants is not None:
            args = (context.eval_ctx if wants == "eval_context" else context.environment, *args)
        found = filter_(*args, **kwargs)
        taken.made(found)
        return found

    call.is_bounded = True  # type: ignore[attr-defined]
    return call
