"""Form fields generated from request bodies of the admin API, with input validation.

A form shows current values; unchanged fields are not sent. Pure functions.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, Literal

import msgspec
from msgspec import inspect

NONE = "none"
_SPANS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_MICROS = 1_000_000


class InvalidInput(Exception):
    """The typed text is invalid; the message names the field, its limit and what to do.

    Args:
        name: of the field.
        message: the reason.
    """

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


@dataclass(frozen=True, slots=True)
class FormField:
    """One field of a form.

    Attributes:
        name: of the field in the body.
        type: of its value, from ``msgspec.inspect``.
        doc: description for the user.
        now: initial text; empty if the value is not set.
        is_needed: whether it is required.
        takes_none: whether the value may be null.
        takes: description of valid input, if the type is not sufficient.
    """

    name: str
    type: Any
    doc: str = ""
    now: str = ""
    is_needed: bool = False
    takes_none: bool = False
    takes: str = ""

    @property
    def hint(self) -> str:
        """Short description of valid input."""
        tail = f", or {NONE}" if self.takes_none else ""
        return (self.takes or _hint(self.name, self.type)) + tail

    def value(self, text: str) -> Any:  # noqa: ANN401 - JSON
        """Parse the typed text into the value for the body.

        Raises:
            InvalidInput: it is invalid.
        """
        text = text.strip()
        if not text and self.is_needed:
            raise InvalidInput(self.name, f"{self.name} is missing; it must be {self.hint}")
        # An empty line means null where null is valid, so that a limit is removed by clearing it.
        if self.takes_none and text.lower() in ("", NONE):
            return None
        value = _read(self.name, text, self.type)
        if value is None or not (isinstance(self.type, inspect.AnyType) or _fits(value, self.type)):
            shown = f"{text[:40]}…" if len(text) > 40 else text
            raise InvalidInput(self.name, f"{self.name} is {shown!r}; it must be {self.hint}")
        return value


def form_fields(
    body: type[msgspec.Struct], now: Mapping[str, Any] | None = None, *, nullable: bool = True
) -> list[FormField]:
    """Return a form field for each field of a body, in order; nested bodies are flattened.

    Args:
        body: of the admin API.
        now: current values; for a new object those that are predetermined.
        nullable: whether null differs from an absent field.
    """
    docs, made = docs_of(body), list[FormField]()
    for field in msgspec.structs.fields(body):
        parts = _parts(inspect.type_info(field.type))
        kinds = [each for each in parts if not isinstance(each, inspect.NoneType)]
        # Names of nested fields are unique within a body; `nest` restores the structure.
        if isinstance(kinds[0], inspect.StructType):
            made += form_fields(kinds[0].cls, now, nullable=nullable)
            continue
        value = None if now is None else now.get(field.name)
        made.append(
            FormField(
                field.name,
                kinds[0],
                docs.get(field.name, ""),
                "" if value is None else as_typed(field.name, value),
                field.required,
                nullable and len(kinds) < len(parts),
            )
        )
    return made


def changed_values(asked: Sequence[FormField], texts: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of required and of changed fields.

    Raises:
        InvalidInput: one of them is invalid.
    """
    return {
        each.name: each.value(texts[each.name])
        for each in asked
        # Unchanged fields are not sent: another operator may have changed them meanwhile.
        if each.is_needed or texts[each.name].strip() != each.now
    }


def nest(body: type[msgspec.Struct], values: Mapping[str, Any]) -> dict[str, Any]:
    """Arrange flat form values as a body with nested bodies."""
    found: dict[str, Any] = {}
    for field in msgspec.structs.fields(body):
        kind = inspect.type_info(field.type)
        if isinstance(kind, inspect.StructType):
            found[field.name] = nest(kind.cls, values)
        elif field.name in values:
            found[field.name] = values[field.name]
    return found


def as_typed(name: str, value: object) -> str:
    """Format a value as typed text: ``1_500_000`` micros are ``1.50``."""
    if name.endswith("_micros") and isinstance(value, int):
        units, rest = divmod(value, _MICROS)
        return f"{units}.{rest:06d}".rstrip("0").ljust(len(str(units)) + 3, "0")
    if isinstance(value, list):
        return " ".join(map(str, value))
    if isinstance(value, float):
        return f"{value:.0f}" if value == int(value) else f"{value:g}"
    return str(value)


def docs_of(body: type) -> dict[str, str]:
    """Return the descriptions of a body's fields from its docstring."""
    found: dict[str, str] = {}
    names: list[str] = []
    # Attributes of a Google-style docstring: names at 8 spaces, continuation lines at 12.
    for line in (body.__doc__ or "").splitlines():
        match = re.fullmatch(r" {8}((?:\w+, )*\w+): (.*)", line)
        if match:
            names = match[1].split(", ")
            found |= dict.fromkeys(names, match[2])
        elif names and line.startswith(" " * 12):
            found |= {name: f"{found[name]} {line.strip()}" for name in names}
        else:
            names = []
    return found


def _parts(kind: Any) -> list[Any]:  # noqa: ANN401 - msgspec's types
    found = list(kind.types) if isinstance(kind, inspect.UnionType) else [kind]
    return [each for each in found if not isinstance(each, inspect.CustomType)]


def _read(name: str, text: str, kind: Any) -> Any:  # noqa: ANN401 - JSON
    """Parse a text by its type; None if it is invalid."""
    match kind:
        case inspect.AnyType():
            return _toml(text)
        case inspect.ListType():
            return [part for part in re.split(r"[\s,]+", text) if part]
        case inspect.IntType() if name.endswith("_micros"):
            return _micros(text)
        # Digits are bounded, here and below: `int` of a long text is slow.
        case inspect.IntType() if name.endswith("seconds") and re.fullmatch(r"\d{1,9}[smhd]", text):
            return int(text[:-1]) * _SPANS[text[-1]]
        case inspect.IntType():
            return int(text) if re.fullmatch(r"-?\d[\d_]{0,20}(?<!_)", text) else None
        case inspect.FloatType():
            return float(text) if re.fullmatch(r"-?(\d{1,20}\.?\d*|\.\d+)", text) else None
    return text


def _toml(text: str) -> Any:  # noqa: ANN401 - any setting
    """Parse a TOML value as in the configuration; plain words need no quotes."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _micros(text: str) -> int | None:
    """Parse an amount of money without floating-point arithmetic."""
    try:
        amount = Decimal(text) * _MICROS
    except InvalidOperation:
        return None
    return int(amount) if amount.is_finite() and amount == amount.to_integral_value() else None


def _fits(value: Any, kind: Any) -> bool:  # noqa: ANN401 - JSON
    try:
        msgspec.convert(value, _type_of(kind))
    except msgspec.ValidationError:
        return False
    return True


def _type_of(kind: Any) -> Any:  # noqa: ANN401 - a type with its bounds
    """Rebuild a type with its bounds from ``msgspec.inspect``'s description."""
    bounds = {
        name: value
        for name in ("ge", "gt", "le", "lt", "min_length", "max_length", "pattern")
        if (value := getattr(kind, name, None)) is not None
    }
    match kind:
        case inspect.IntType():
            base: Any = int
        case inspect.FloatType():
            base = float
        case inspect.ListType():
            base = list[_type_of(kind.item_type)]  # type: ignore[misc]
        case inspect.LiteralType():
            return Literal[kind.values]
        case _:
            base = str
    return Annotated[base, msgspec.Meta(**bounds)]


def _hint(name: str, kind: Any) -> str:  # noqa: ANN401 - msgspec's types
    match kind:
        case inspect.IntType() if name.endswith("_micros"):
            return f"an amount such as 12.50{_range(kind, _MICROS)}, with at most 6 decimals"
        case inspect.IntType() if name.endswith("seconds"):
            return f"seconds{_range(kind, 1)}, or a time such as 12h or 90d"
        case inspect.IntType():
            return f"a whole number{_range(kind, 1)}"
        case inspect.FloatType():
            return f"a number{_range(kind, 1)}"
        case inspect.ListType():
            return "words separated by spaces"
        case inspect.LiteralType():
            return f"one of {', '.join(map(str, kind.values))}"
    if name.startswith("kv_"):
        return "pages such as 128, or a share of all such as 12.5%"
    most = getattr(kind, "max_length", None)
    return f"text of at most {most} characters" if most else "text"


def _range(number: Any, scale: int) -> str:  # noqa: ANN401 - msgspec's types
    bounds = [
        ("from", number.ge),
        ("above", number.gt),
        ("to", number.le),
        ("below", number.lt),
    ]
    return "".join(
        f" {word} {_plain(value / scale)}" for word, value in bounds if value is not None
    )


def _plain(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:g}"
