"""Resource limits of chat-template rendering: loop iterations, calls, and characters.

A template comes with the model, but runs in the daemon, and jinja2's sandbox limits neither time
nor memory: a hundred characters can produce a gigabyte, or loop for hours. Operations that could
be expensive are checked before they run; cumulative costs are counted. Lists and tuples are
counted with all their contents when they are created: one that contains its predecessor twice,
forty levels deep, could not even be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Any, cast

from jinja2 import nodes, pass_context
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from gatewayd.text.template_meter import CHECKED, MATERIALIZED, TemplateMeter, check_bits, size

_SMALL = 1 << 12
"""Sums up to this length are not counted, because the limit on iterations bounds them."""
_CALL = 4
"""Iterations that a call counts as, by its time."""
_KEY = "meter of this rendering"
"""Context key of the meter; not an identifier, so templates cannot refer to it."""


def new_meter() -> dict[str, Any]:
    """Return the context variable with a new meter, to render a template with."""
    return {_KEY: TemplateMeter()}


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Jinja2 sandbox with resource limits.

    Args:
        options: passed to jinja2's environment.
    """

    intercepted_binops = frozenset(("*", "**", "%", "+"))

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 - jinja2's
        super().__init__(finalize=_counted_chars, **options)
        # It generates text of any length.
        self.globals.pop("lipsum")
        self.bound_filters()
        # After the others were wrapped: the meter's own filters are not metered.
        self.filters[_KEY] = _counted_iterations
        self.filters[_KEY + "~"] = _counted_chars
        self.filters[_KEY + "()"] = _counted_entry

    def bound_filters(self) -> None:
        """Wrap all current filters with limits, each once."""
        for name, found in self.filters.items():
            if not hasattr(found, "is_bounded"):
                self.filters[name] = _bounded(name, found)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """Parse a template and instrument its loops, macros and concatenations with counters."""
        found = super()._parse(source, name, filename)
        _MeteredValues(self).visit(found)
        for loop in found.find_all(nodes.For):
            if loop.recursive:  # it iterates over more than the given iterable
                self._count(loop)
            else:
                own = nodes.Const(_template_chars(loop))
                loop.iter = self.filtered(loop.iter, _KEY, own)
        for joined in found.find_all(nodes.Concat):
            joined.nodes = [self.metered(part) for part in joined.nodes]
        macros: list[nodes.Macro | nodes.CallBlock] = [*found.find_all(nodes.Macro)]
        macros += found.find_all(nodes.CallBlock)
        for macro in macros:
            self._count(macro)
        return found

    def _count(self, block: nodes.For | nodes.Macro | nodes.CallBlock) -> None:
        """Count each entry into the body of a block."""
        counted = self.filtered(nodes.Const(""), _KEY + "()", nodes.Const(_template_chars(block)))
        block.body.insert(0, nodes.Output([counted], lineno=block.lineno))

    def metered(self, node: nodes.Node) -> nodes.Filter:
        """Wrap an expression to count the characters of its value."""
        return self.filtered(node, _KEY + "~")

    def filtered(self, node: nodes.Node, name: str, *arguments: nodes.Expr) -> nodes.Filter:
        """Wrap an expression in a filter."""
        made = nodes.Filter(cast(nodes.Expr, node), name, list(arguments), [], None, None)
        made.set_lineno(node.lineno or 1)
        made.set_environment(self)
        return made

    # Names as in jinja2, so that no keyword argument of a template collides with them.
    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """Call an object that the sandbox permits, within the limits."""
        meter: TemplateMeter = __context.parent[_KEY]
        meter.count_iterations(iterations=_CALL)
        # The sandbox replaces str.format by a function that wraps the method.
        method = getattr(__obj, "__wrapped__", __obj)
        owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        if isinstance(owner, str) and (name in CHECKED or name == "format_map"):
            # An iterator can be read only once: it is materialized, measured, then joined.
            if name == "join" and len(args) == 1:
                args = ([*args[0]],)
                meter.check_operation(name, args[0], (owner,))
            else:
                name = "format" if name == "format_map" else name
                meter.check_operation(name, owner, (*args, *kwargs.values()))
        found = super().call(__context, __obj, *args, **kwargs)
        meter.count_result(found)
        # `count_result` counts no dicts.
        if __obj is dict:
            meter.count_chars(size(found))
        return found

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:  # noqa: ANN401
        """Evaluate a binary operator, within the limits."""
        if operator == "+":  # fast path: most templates use no other, several times per message
            found = left + right
            if not hasattr(found, "__len__") or len(found) <= _SMALL:
                return found
            context.parent[_KEY].count_result(found)
            return found
        meter: TemplateMeter = context.parent[_KEY]
        if operator == "*":
            # Either operand may be the sequence.
            each, times = (left, right) if hasattr(left, "__len__") else (right, left)
            if hasattr(each, "__len__") and isinstance(times, int):
                meter.count_chars((len(each) + size(each)) * max(0, times))
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            check_bits(left.bit_length() * max(0, right))
        elif operator == "%" and isinstance(left, str):
            meter.check_operation("format", left, right if isinstance(right, tuple) else (right,))
            meter.count_chars(size(right))
        found = super().call_binop(context, operator, left, right)
        meter.count_result(found)
        if isinstance(found, int):
            check_bits(found.bit_length())
        return found


class _MeteredValues(NodeTransformer):
    """Meters expressions that nest values: lists, tuples, dicts, and extra macro arguments."""

    def __init__(self, environment: BoundedEnvironment) -> None:
        self._environment = environment

    def visit_List(self, node: nodes.List | nodes.Tuple | nodes.Dict) -> nodes.Node:
        """Meter a list or dict unless it is constant."""
        self.generic_visit(node)
        try:
            node.as_const()
        except nodes.Impossible:
            return self._environment.metered(node)
        return node

    visit_Dict = visit_List

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        """Meter a tuple like a list, unless it is an assignment target."""
        return self.visit_List(node) if node.ctx == "load" else node

    def visit_Name(self, node: nodes.Name) -> nodes.Node:
        """Meter a macro's ``varargs`` and ``kwargs``, which are a tuple and a dict."""
        is_more = node.ctx == "load" and node.name in ("varargs", "kwargs")
        return self._environment.metered(node) if is_more else node


def _template_chars(block: nodes.Node) -> int:
    return sum(len(data.data) for data in block.find_all(nodes.TemplateData))


@pass_context
def _counted_chars(context: Context, value: Any) -> Any:  # noqa: ANN401 - any value
    """Count the characters of an output or concatenated value and return the value."""
    meter: TemplateMeter = context.parent[_KEY]
    meter.count_chars(len(value) if isinstance(value, str) else size(value))
    return value


@pass_context
def _counted_iterations(context: Context, values: Iterable[Any], chars: int) -> Iterable[Any]:
    """Return a loop's iterable that counts each iteration."""
    meter: TemplateMeter = context.parent[_KEY]
    return _count_each(values, meter, chars)


@pass_context
def _counted_entry(context: Context, nothing: str, chars: int) -> str:
    """Count an entry into a block's body; renders nothing."""
    meter: TemplateMeter = context.parent[_KEY]
    meter.count_iterations(chars)
    return nothing


def _count_each(values: Iterable[Any], meter: TemplateMeter, chars: int) -> Iterator[Any]:
    for value in values:
        meter.count_iterations(chars)
        yield value


def _bounded(name: str, filter_: Callable[..., Any]) -> Callable[..., Any]:
    passed = getattr(filter_, "jinja_pass_arg", None)
    wants = None if passed is None else passed.name
    is_checked, is_whole = name in CHECKED, name in MATERIALIZED

    @pass_context
    @wraps(filter_)
    def call(context: Context, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - jinja2's
        meter: TemplateMeter = context.parent[_KEY]
        value, *arguments = args
        # An iterator cannot be measured without consuming it.
        if is_whole and not isinstance(value, str | list | tuple):
            value = [*value]
            args = (value, *arguments)
        meter.count_filter()
        if is_checked:
            meter.check_operation(name, value, [*arguments, *kwargs.values()])
        # The wrapper gets the context in any case, the filter what it declares.
        if wants == "context":
            args = (context, *args)
        elif wants is not None:
            args = (context.eval_ctx if wants == "eval_context" else context.environment, *args)
        found = filter_(*args, **kwargs)
        meter.count_result(found)
        return found

    call.is_bounded = True  # type: ignore[attr-defined]
    return call
