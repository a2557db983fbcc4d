"""FlashInfer's signatures, read from its wheel: it is not installed without a GPU.

``make install`` fetches the wheel by its hash. Modules are parsed, never imported.
"""

from __future__ import annotations

import ast
import re
import sys
import zipfile
from collections.abc import Iterator
from functools import cache, cached_property
from inspect import Parameter, Signature
from pathlib import Path
from typing import NamedTuple

from tests.gpu.kit.lock import FLASHINFER
from tests.gpu.kit.wheels import wheel_of

Definition = ast.FunctionDef | ast.ClassDef
_PACKAGE = "flashinfer"
_EXPORT = re.compile(r"TVM_FFI_DLL_EXPORT_TYPED_FUNC\((\w+),\s*([\w:]+)\)")


class Exported(NamedTuple):
    """What a compiled module offers: names of its parameters, and whether there may be more."""

    parameters: tuple[str, ...]
    is_open: bool


class Wheel:
    """One wheel.

    Args:
        file: of it.
    """

    def __init__(self, file: Path) -> None:
        self._archive = zipfile.ZipFile(file)
        self._names = set(self._archive.namelist())
        self._trees: dict[str, ast.Module] = {}
        self._exported: dict[str, list[Exported]] = {}

    def tree(self, module: str) -> ast.Module | None:
        """A module's syntax; None if there is no such module."""
        if module not in self._trees:
            path = module.replace(".", "/")
            for name in (f"{path}.py", f"{path}/__init__.py"):
                if name in self._names:
                    self._trees[module] = ast.parse(self._archive.read(name))
        return self._trees.get(module)

    def find(self, module: str, name: str) -> Definition | None:
        """What a module calls by a name, wherever it is defined."""
        tree = self.tree(module)
        if tree is None:
            return None
        found = None
        for node in _statements(tree.body):
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
                found = node  # the last one: those before are overloads
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        found = self.find(self._absolute(module, node), alias.name) or found
        return found

    def _absolute(self, module: str, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        is_package = f"{module.replace('.', '/')}/__init__.py" in self._names
        above = module.split(".")
        above = above[: len(above) - node.level + is_package]
        return ".".join([*above, *([node.module] if node.module else [])])

    def exported(self, name: str) -> list[Exported]:
        """Functions of this name that compiled modules offer; several modules may."""
        if name not in self._exported:
            found = (
                _parameters_in(text, function.split("::")[-1])
                for text, function in self._exports.get(name, [])
            )
            self._exported[name] = [one for one in found if one is not None]
        return self._exported[name]

    @cached_property
    def _exports(self) -> dict[str, list[tuple[str, str]]]:
        """Texts and functions behind the names that compiled modules offer."""
        found: dict[str, list[tuple[str, str]]] = {}
        for name in self._names:
            if re.fullmatch(rf"{_PACKAGE}/data/csrc/\w+\.cu", name):
                text = self._archive.read(name).decode(errors="replace")
                for exported, function in _EXPORT.findall(text):
                    found.setdefault(exported, []).append((text, function))
        return found


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Those that run at import, within conditions and attempts as well."""
    for node in body:
        yield node
        for part in ("body", "orelse", "finalbody"):
            if isinstance(node, ast.If | ast.Try):
                yield from _statements(getattr(node, part, []))
        if isinstance(node, ast.Try):
            for handler in node.handlers:
                yield from _statements(handler.body)


def _parameters_in(text: str, function: str) -> Exported | None:
    """The parameters of a C++ function."""
    for match in re.finditer(rf"\b{function}\s*\(", text):
        depth, at = 1, match.end()
        while depth and at < len(text):
            depth += {"(": 1, ")": -1}.get(text[at], 0)
            at += 1
        inside = re.sub(r"//[^\n]*", "", text[match.end() : at - 1])
        inside = re.sub(r"<[^<>]*>", "", re.sub(r"<[^<>]*>", "", inside))
        is_open = "ADDITIONAL_FUNC_PARAMS" in inside
        parts = [part.split() for part in inside.replace("ADDITIONAL_FUNC_PARAMS", "").split(",")]
        # A call names its arguments, a function has types before them.
        if all(len(part) >= 2 for part in parts):
            names = tuple(re.sub(r"\W", "", part[-1]) for part in parts)
            return Exported(names, is_open)
    return None


def signature(function: ast.FunctionDef, *, is_method: bool = False) -> Signature:
    """As ``inspect`` has it; defaults are their texts."""
    given = function.args
    positional = [*given.posonlyargs, *given.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(given.defaults))
    parameters = [
        Parameter(one.arg, Parameter.POSITIONAL_OR_KEYWORD, default=_default(default))
        for one, default in zip(positional, [*defaults, *given.defaults], strict=True)
    ][is_method:]
    if given.vararg:
        parameters.append(Parameter(given.vararg.arg, Parameter.VAR_POSITIONAL))
    for one, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        parameters.append(Parameter(one.arg, Parameter.KEYWORD_ONLY, default=_default(default)))
    if given.kwarg:
        parameters.append(Parameter(given.kwarg.arg, Parameter.VAR_KEYWORD))
    return Signature(parameters)


def _default(value: ast.expr | None) -> object:
    return Parameter.empty if value is None else ast.unparse(value)


def methods(found: ast.ClassDef) -> dict[str, ast.FunctionDef]:
    """Of a class, without those that it inherits.

    One that hands whatever it is given on to ``_NAME_impl`` takes what that takes.
    """
    named = {node.name: node for node in found.body if isinstance(node, ast.FunctionDef)}
    return {
        name: named.get(f"_{name}_impl", node) if node.args.kwarg else node
        for name, node in named.items()
    }


def attributes(found: ast.ClassDef) -> set[str]:
    """What the methods of a class store on the object."""
    return {
        node.attr
        for node in ast.walk(found)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }


@cache
def wheel() -> Wheel:
    """The one that is pinned."""
    return Wheel(wheel_of(FLASHINFER, Path(sys.prefix, "wheels")))
