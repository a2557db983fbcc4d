"""Static search for FlashInfer uses in our sources: functions, classes, methods, modules.

Nothing is listed by hand: names come from the file's imports, types of objects from annotations,
from constructors and from what a class stores. A call of a method whose object is of a type that
cannot be told must fit one of ours of that name, or one of FlashInfer's.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import Parameter, Signature
from pathlib import Path

import torch

from tests.engine.attention.flashinfer_types import Types, is_own
from tests.engine.attention.flashinfer_wheel import Wheel, attributes, methods, signature

_PACKAGE = "flashinfer"
ALIASES: Mapping[str, frozenset[str]] = {
    "page_indptr": frozenset({"indptr", "paged_kv_indptr"}),
    "pages": frozenset({"indices", "paged_kv_indices"}),
    "last_page_len": frozenset({"last_page_len", "paged_kv_last_page_len"}),
    "query_indptr": frozenset({"qo_indptr"}),
    "num_heads": frozenset({"num_qo_heads"}),
    "head_dim": frozenset({"head_dim", "head_dim_qk", "head_dim_vo"}),
}
"""What our names are to FlashInfer. A positional argument of such a name stands for these alone."""


@dataclass(frozen=True, slots=True)
class Target:
    """What is called: a name for messages, and its signatures, one of which must fit."""

    name: str
    signatures: tuple[Signature, ...]


@dataclass(frozen=True, slots=True)
class Use:
    """One call."""

    line: int
    target: Target
    arguments: tuple[ast.expr, ...]
    keywords: Mapping[str, ast.expr]
    is_partial: bool

    def problem(self) -> str:
        """What is wrong with it; empty if nothing is."""
        found = [self._problem(one) for one in self.target.signatures]
        return "" if "" in found else f"{self.target.name}: {found[0]}"

    def _problem(self, wanted: Signature) -> str:
        bind = wanted.bind_partial if self.is_partial else wanted.bind
        try:
            bound = bind(*self.arguments, **self.keywords)
        except TypeError as error:
            return str(error)
        for name, value in bound.arguments.items():
            if wanted.parameters[name].kind is Parameter.POSITIONAL_OR_KEYWORD:
                ours = _last_name(value)
                fits = ALIASES.get(ours, {ours} if ours in wanted.parameters else {name})
                if name not in self.keywords and name not in fits:
                    return f"{ours} is given for {name}"
        return ""


@dataclass(slots=True)
class File:
    """One file's uses.

    Args:
        path: of the file.
        wheel: FlashInfer's.
        ours: signatures of our own methods by name.

    Attributes:
        uses: calls.
        unknown: imports of what FlashInfer does not have, and private attributes likewise.
        classes: FlashInfer's, by the names that the file imports them under.
    """

    path: Path
    wheel: Wheel
    ours: Mapping[str, Sequence[Signature]]
    uses: list[Use] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    tree: ast.Module = field(init=False)
    _functions: dict[str, ast.FunctionDef] = field(default_factory=dict)
    _modules: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tree = ast.parse(self.path.read_text("utf-8"))
        self._imports()

    def read(self, others: Mapping[str, ast.ClassDef], private: frozenset[str]) -> None:
        """Find all uses.

        Args:
            others: FlashInfer's classes that any file uses.
            private: names with an underscore that are ours.
        """
        everything = {**others, **self.classes}
        for owner, function in _functions(self.tree):
            types = Types(self.classes, owner, function)
            for node in _own(function):
                if isinstance(node, ast.Call):
                    self._call(node, types, everything, owner)
                if (name := _private(node)) and name not in private:
                    of = everything.values()
                    if not any(name in attributes(one) | methods(one).keys() for one in of):
                        self.unknown.append(f"{self.path.name}:{node.lineno}: {name}")

    def _imports(self) -> None:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name.split(".")[0] == _PACKAGE:
                        self._modules[alias.asname or _PACKAGE] = alias.name
            elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == _PACKAGE:
                for alias in node.names:
                    self._import(node.module or "", alias, node.lineno)

    def _import(self, module: str, alias: ast.alias, line: int) -> None:
        name = alias.asname or alias.name
        match self.wheel.find(module, alias.name):
            case ast.ClassDef() as found:
                self.classes[name] = found
            case ast.FunctionDef() as found:
                self._functions[name] = found
            case _ if self.wheel.tree(f"{module}.{alias.name}"):
                self._modules[name] = f"{module}.{alias.name}"
            case _:
                self.unknown.append(f"{self.path.name}:{line}: {module} has no {alias.name}")

    def _call(
        self,
        node: ast.Call,
        types: Types,
        everything: Mapping[str, ast.ClassDef],
        owner: ast.ClassDef | None,
    ) -> None:
        function, given, is_partial = node.func, node.args, False
        if isinstance(function, ast.Name) and function.id == "partial" and given:
            function, given, is_partial = given[0], given[1:], True
        target = self._target(function, types, everything)
        if target is None:
            return
        arguments, unknown = _arguments(given, types)
        keywords: dict[str, ast.expr] = {}
        for keyword in node.keywords:
            if keyword.arg is not None:
                keywords[keyword.arg] = keyword.value
            elif (found := types.literal(keyword.value)) and isinstance(found, ast.Dict):
                keywords |= {
                    key.value: value
                    for key, value in zip(found.keys, found.values, strict=True)
                    if isinstance(key, ast.Constant) and isinstance(key.value, str)
                }
            else:
                unknown = True
        self.uses.append(
            Use(node.lineno, target, tuple(arguments), keywords, is_partial or unknown)
        )

    def _target(
        self, function: ast.expr, types: Types, everything: Mapping[str, ast.ClassDef]
    ) -> Target | None:
        if isinstance(function, ast.Name):
            return self._named(function.id)
        if not isinstance(function, ast.Attribute):
            return None
        if (module := self._module(function.value)) is not None:
            return self._of_module(module, function.attr, function.lineno)
        name, of = function.attr, types.of(function.value)
        if of:
            found = [methods(one).get(name) for one in of]
            if None in found:
                self.unknown.append(f"{self.path.name}:{function.lineno}: no method {name}")
            signatures = [signature(one, is_method=True) for one in found if one is not None]
            return Target(name, tuple(signatures)) if signatures else None
        theirs = [
            signature(methods(one)[name], is_method=True)
            for one in everything.values()
            if name in methods(one)
        ]
        compiled = [] if name in self.ours else self._compiled(name)
        if not theirs and not compiled:
            return None
        return Target(name, (*theirs, *compiled, *self.ours.get(name, ())))

    def _compiled(self, name: str) -> list[Signature]:
        """Functions of compiled modules, in files that load any; a tensor's method is none."""
        if not (self._functions or self._modules) or hasattr(torch.Tensor, name):
            return []
        return [
            Signature([Parameter(p, Parameter.POSITIONAL_ONLY) for p in one.parameters])
            for one in self.wheel.exported(name)
            if not one.is_open
        ]

    def _named(self, name: str) -> Target | None:
        if name in self._functions:
            return Target(name, (signature(self._functions[name]),))
        if name in self.classes:
            made = methods(self.classes[name])["__init__"]
            return Target(name, (signature(made, is_method=True),))
        return None

    def _module(self, value: ast.expr) -> str | None:
        if isinstance(value, ast.Name):
            return self._modules.get(value.id)
        if isinstance(value, ast.Attribute) and (above := self._module(value.value)):
            return f"{above}.{value.attr}"
        return None

    def _of_module(self, module: str, name: str, line: int) -> Target | None:
        match self.wheel.find(module, name):
            case ast.FunctionDef() as found:
                return Target(name, (signature(found),))
            case ast.ClassDef() as found:
                return Target(name, (signature(methods(found)["__init__"], is_method=True),))
        self.unknown.append(f"{self.path.name}:{line}: {module} has no {name}")
        return None


def _arguments(given: Sequence[ast.expr], types: Types) -> tuple[list[ast.expr], bool]:
    """Positional arguments, and whether some cannot be told."""
    found: list[ast.expr] = []
    for one in given:
        if not isinstance(one, ast.Starred):
            found.append(one)
            continue
        literal = types.literal(one.value)
        if not isinstance(literal, ast.Tuple | ast.List):
            return found, True
        found += literal.elts
    return found, False


def _functions(tree: ast.Module) -> Iterator[tuple[ast.ClassDef | None, ast.FunctionDef]]:
    """All functions, with the class around them; what is outside is one too."""
    outside = ast.parse("def _(): pass").body[0]
    if isinstance(outside, ast.FunctionDef):
        outside.body = [n for n in tree.body if not isinstance(n, ast.ClassDef | ast.FunctionDef)]
        yield None, outside
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield None, node
        elif isinstance(node, ast.ClassDef):
            for method in methods(node).values():
                yield node, method


def _own(function: ast.FunctionDef) -> Iterator[ast.expr]:
    for node in ast.walk(function):
        if isinstance(node, ast.expr):
            yield node


def _private(node: ast.expr) -> str:
    """A name with an underscore that is read or written on another object."""
    name = ""
    if isinstance(node, ast.Attribute) and not is_own(node.value):
        name = node.attr
    elif (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("getattr", "setattr")
    ):
        value = node.args[1]
        name = str(value.value) if isinstance(value, ast.Constant) else ""
    return name if name.startswith("_") and not name.startswith("__") else ""


def _last_name(value: ast.expr) -> str:
    """``host.page_indptr[: n + 1]`` and ``_pageable(page_indptr)`` are ``page_indptr``."""
    match value:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Subscript(value=inner) | ast.Call(func=ast.Name(), args=[inner]):
            return _last_name(inner)
    return ""
