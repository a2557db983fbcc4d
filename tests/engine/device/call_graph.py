"""Which functions of the engine a captured step may reach, told from the source by their names.

Names are all that is looked at, so more is reached than runs: a call of something stored, such as
``self._norm(x)``, reaches all ``__call__`` methods, lambdas, nested functions and kernels, and a
call of a method all of its name, those of the same file first.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import gatewayd_engine

ROOT = Path(gatewayd_engine.__file__).parent
PACKAGES = ("attention", "device", "kernels", "model", "kv")
STORED = "__call__"
LIBRARIES = {"functional", "math", "np", "tl", "torch", "triton"}


@dataclass(frozen=True)
class Function:
    """A function, a method or a lambda.

    Attributes:
        name: with its classes, and the functions that it is in.
        file: relative to the package.
        node: its source.
        calls: what it calls, see ``_called``.
    """

    name: str
    file: str
    node: ast.AST
    calls: frozenset[str] = field(default_factory=frozenset)

    def __str__(self) -> str:
        return f"{self.file}:{self.name}"


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function without those of functions in it."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, ast.FunctionDef | ast.Lambda):
            yield from own_nodes(child)


def functions(excluded: frozenset[str]) -> dict[str, list[Function]]:
    """All of the packages, by the last part of their names; files named are left out."""
    index: dict[str, list[Function]] = defaultdict(list)
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            file = path.relative_to(ROOT).as_posix()
            if file not in excluded:
                _collect(ast.parse(path.read_text("utf-8")), "", file, index, is_inner=False)
    return index


def _collect(
    node: ast.AST, prefix: str, file: str, index: dict[str, list[Function]], *, is_inner: bool
) -> None:
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.FunctionDef(name=name):
                found = Function(prefix + name, file, child, _called(child))
                index[name].append(found)
                is_kernel = file.startswith("kernels/") and not prefix
                if is_kernel or (is_inner and not file.startswith("device/")):
                    index[STORED].append(found)
                if name == "__init__":
                    # Calling a class makes one.
                    index[prefix.rstrip(".").rpartition(".")[2]].append(found)
                _collect(child, f"{prefix}{name}.", file, index, is_inner=True)
            case ast.Lambda():
                index[STORED].append(Function(f"{prefix}<lambda>", file, child, _called(child)))
                _collect(child, prefix, file, index, is_inner=True)
            case ast.ClassDef(name=name):
                _collect(child, f"{prefix}{name}.", file, index, is_inner=False)
            case _:
                _collect(child, prefix, file, index, is_inner=is_inner)


def _called(function: ast.AST) -> frozenset[str]:
    """Names that a function calls.

    ``self.name`` is a method of its own or something stored, ``.name`` a method of another, and
    ``STORED`` what has no name.
    """
    names = set()
    for node in own_nodes(function):
        if not isinstance(node, ast.Call):
            continue
        match node.func:
            case ast.Attribute(attr="__init__"):
                pass
            case ast.Attribute(value=ast.Name(id=owner)) if owner in LIBRARIES:
                pass
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                names.add(f"self.{name}")
            case ast.Attribute(attr=name):
                names.add(f".{name}")
            case ast.Name(id=name):
                names.add(name)
            # A Triton kernel and its grid.
            case ast.Subscript(value=ast.Name(id=name)):
                names.add(name)
            case _:
                names.add(STORED)
    return frozenset(names)


def reached(roots: list[str], excluded: frozenset[str]) -> list[Function]:
    """What may run when functions of these names, ``file:name``, do.

    Raises:
        ValueError: there is no such root.
    """
    by_name = {
        str(function): function for some in functions(frozenset()).values() for function in some
    }
    index = functions(excluded)
    if missing := [root for root in roots if root not in by_name]:
        raise ValueError(f"no such functions: {missing}")
    seen = {root: by_name[root] for root in roots}
    rest = list(seen.values())
    while rest:
        function = rest.pop()
        for name in function.calls:
            for other in _meant(name, function, index):
                if str(other) not in seen:
                    seen[str(other)] = other
                    rest.append(other)
    return list(seen.values())


def _meant(name: str, caller: Function, index: dict[str, list[Function]]) -> list[Function]:
    """What a name may stand for: what its file has of that name, or all that is called so."""
    whose, _, bare = name.rpartition(".")
    found = index.get(bare, [])
    near = [other for other in found if other.file == caller.file]
    if whose:
        return [other for other in near if "." in other.name] or index[STORED]
    # A method that no class has is a tensor's, and a name that no file has a variable.
    return near or found or ([] if name.startswith(".") else index[STORED])
