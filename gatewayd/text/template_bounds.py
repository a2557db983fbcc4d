"""What rendering a template may take: turns of loops, calls, and characters.

A template is the model's, but time and memory are the daemon's, and jinja2's sandbox bounds
neither: a hundred characters can make a gigabyte, or turn for hours. What could take much at once
is looked at before it is done; what adds up is counted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import wraps
from typing import Any, cast

from jinja2 import nodes, pass_context
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

MOST_TURNS = 1_000_000
"""Of all loops; a long conversation takes some thousands."""
MOST_CHARS = 1 << 26
"""That are made, also to be thrown away: some times as many as a body may have."""
_MOST_NUMBER = 1 << 20
"""Of a width or a count."""
_MOST_BITS = 1 << 12
_SMALL = 1 << 12
"""A sum of so many characters is not worth counting: a loop's turns bound them."""
_CALL = 4
"""Turns that a call counts for, in time."""
_ENTRY = 32
"""Characters that one of a list counts for, in time as in memory."""
_WIDE = re.compile(r"%[^A-Za-z%]*(\*|\d{7})|\{[^{}]*:[^{}]*(\{|\d{7})")
"""A width that is large, or that somebody gives."""
_KEY = "what this rendering has taken"
"""No name that a template can write."""
_WIDENING = frozenset(("batch", "center", "expandtabs", "indent", "ljust", "rjust", "slice"))
_WIDENING |= frozenset(("tojson", "wordwrap", "zfill"))
"""Fill up to a width, or by one."""
_SPREADING = frozenset(("indent", "join", "replace", "wordwrap"))
"""Put one text wherever another has something."""
_WRITING = frozenset(("e", "escape", "forceescape", "join", "pprint", "string", "tojson"))
_WRITING |= frozenset(("urlencode", "xmlattr"))
"""Make text of what is none."""


class TooMuch(Exception):
    """A rendering takes more than it may."""


class Taken:
    """By one rendering."""

    __slots__ = ("chars", "turns")

    def __init__(self) -> None:
        self.turns = self.chars = 0

    def turn(self, chars: int = 0, turns: int = 1) -> None:
        """Count one of a loop, or some, with so much of the template's own text in it.

        Raises:
            TooMuch: that was one too many.
        """
        self.turns += turns
        if self.turns > MOST_TURNS:
            raise TooMuch(f"it takes more than {MOST_TURNS:,} turns and calls")
        self.write(chars)

    def write(self, chars: int) -> None:
        """Count characters, or entries of a list.

        Raises:
            TooMuch: these were too many.
        """
        self.chars += chars
        if self.chars > MOST_CHARS:
            raise TooMuch(f"it makes more than {MOST_CHARS:,} characters")

    def look(self, name: str, value: object, arguments: Iterable[object]) -> None:
        """See before a method or a filter is called that it does not make too much at once.

        Raises:
            TooMuch: it would.
        """
        if name == "format" and isinstance(value, str) and _WIDE.search(value):
            raise TooMuch("it fills up more than a million characters")
        if name in _WIDENING and any(
            isinstance(one, int) and abs(one) > _MOST_NUMBER for one in arguments
        ):
            raise TooMuch(f"{name} is given more than {_MOST_NUMBER:,}")
        if name in _SPREADING and isinstance(value, str | list | tuple):
            texts = [len(one) for one in arguments if isinstance(one, str)]
            if len(value) * max(texts, default=0) > MOST_CHARS:
                raise TooMuch(f"{name} makes more than {MOST_CHARS:,} characters")
        if name in _WRITING and not isinstance(value, str):
            self.write(_size(value))

    def made(self, found: object) -> None:
        """Count what a method, a filter or an operator gave."""
        if isinstance(found, str | list | tuple):
            self.write(len(found))


def begun() -> dict[str, Any]:
    """What a rendering is given beside its variables."""
    return {_KEY: Taken()}


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
        for loop in found.find_all(nodes.For):
            own = sum(len(data.data) for data in loop.find_all(nodes.TemplateData))
            loop.iter = self._filtered(loop.iter, _KEY, nodes.Const(own))
        for joined in found.find_all(nodes.Concat):
            joined.nodes = [self._filtered(part, _KEY + "~") for part in joined.nodes]
        macros: list[nodes.Macro | nodes.CallBlock] = [*found.find_all(nodes.Macro)]
        macros += found.find_all(nodes.CallBlock)
        for macro in macros:
            own = sum(len(data.data) for data in macro.find_all(nodes.TemplateData))
            counted = self._filtered(nodes.Const(""), _KEY + "()", nodes.Const(own))
            macro.body.insert(0, nodes.Output([counted], lineno=macro.lineno))
        return found

    def _filtered(self, node: nodes.Node, name: str, *arguments: nodes.Expr) -> nodes.Filter:
        made = nodes.Filter(cast(nodes.Expr, node), name, list(arguments), [], None, None)
        made.set_lineno(node.lineno or 1)
        made.set_environment(self)
        return made

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """Call what the sandbox lets be called."""
        taken: Taken = __context.parent[_KEY]
        taken.turn(turns=_CALL)
        # A text's format is a function of the sandbox, around the method.
        method = getattr(__obj, "__wrapped__", __obj)
        owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        if isinstance(owner, str):
            taken.look("format" if name == "format_map" else name, owner, args)
            if name == "join":
                taken.write(_size(args))
        found = super().call(__context, __obj, *args, **kwargs)
        taken.made(found)
        return found

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:  # noqa: ANN401
        """Compute."""
        if operator == "+":  # of most templates the only one, some for each message
            found = left + right
            if not hasattr(found, "__len__") or len(found) <= _SMALL:
                return found
            context.parent[_KEY].made(found)
            return found
        taken: Taken = context.parent[_KEY]
        if operator == "*":
            each, times = (left, right) if hasattr(left, "__len__") else (right, left)
            if hasattr(each, "__len__") and isinstance(times, int):
                taken.write(len(each) * max(0, times))
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            _check_bits(left.bit_length() * max(0, right))
        elif operator == "%" and isinstance(left, str):
            taken.look("format", left, ())
            taken.write(_size(right))
        found = super().call_binop(context, operator, left, right)
        taken.made(found)
        if isinstance(found, int):
            _check_bits(found.bit_length())
        return found


@pass_context
def _measured(context: Context, value: Any) -> Any:  # noqa: ANN401 - any value
    """What is written or joined, counted."""
    taken: Taken = context.parent[_KEY]
    taken.write(len(value) if isinstance(value, str) else _size(value))
    return value


@pass_context
def _turning(context: Context, values: Iterable[Any], chars: int) -> Iterable[Any]:
    """What a loop goes over, counted as it goes."""
    taken: Taken = context.parent[_KEY]
    return _each(values, taken, chars)


@pass_context
def _entered(context: Context, nothing: str, chars: int) -> str:
    """The beginning of a macro's body."""
    taken: Taken = context.parent[_KEY]
    taken.turn(chars)
    return nothing


def _each(values: Iterable[Any], taken: Taken, chars: int) -> Iterator[Any]:
    for value in values:
        taken.turn(chars)
        yield value


def _bounded(name: str, filter_: Callable[..., Any]) -> Callable[..., Any]:
    passed = getattr(filter_, "jinja_pass_arg", None)
    wants = None if passed is None else passed.name

    @pass_context
    @wraps(filter_)
    def call(context: Context, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - jinja2's
        taken: Taken = context.parent[_KEY]
        value, *arguments = args
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


def _check_bits(bits: int) -> None:
    if bits > _MOST_BITS:
        raise TooMuch(f"it computes with numbers of more than {_MOST_BITS:,} bits")


def _size(value: object) -> int:
    """Characters of the texts in a value, about; no more than one beyond what there may be."""
    size, left = 0, [value]
    while left and size <= MOST_CHARS:
        one = left.pop()
        if isinstance(one, str):
            size += len(one)
        elif isinstance(one, Mapping):
            left += [*one, *one.values()]
            size += _ENTRY * len(one)
        elif isinstance(one, list | tuple):
            left += one
            size += _ENTRY * len(one)
    return size
