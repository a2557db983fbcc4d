"""Static call graph: functions of the engine that a captured step may reach.

More is reached than runs. A name is that of its own file, or what the file imports; ``self.name``
is a method of the class, or of one that is derived from it or that it is derived from. What is
stored, such as ``self._norm(x)``, may be any ``__call__`` method, lambda, nested function or
kernel, and a method of something else any of its name.
"""

from __future__ import annotations

import ast
import builtins
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path

import gatewayd_engine

ROOT = Path(gatewayd_engine.__file__).parent
CPU_ALONE = ("kernels/cpu/", "kernels/llvm/")
"""Code that no device runs."""
PACKAGES = ("attention", "kernels", "kv", "model", "runner/gpu")
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

    @property
    def owner(self) -> str:
        """Its class, if it is a method."""
        return self.name.rpartition(".")[0].rpartition(".")[2]

    def __str__(self) -> str:
        return f"{self.file}:{self.name}"


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function without those of functions in it."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, ast.FunctionDef | ast.Lambda):
            yield from own_nodes(child)


class Source:
    """The functions of the packages.

    Attributes:
        all: functions, by ``file:name``.
        parts: names of each, and of the functions and classes that it is in.
    """

    def __init__(self) -> None:
        self.all: dict[str, Function] = {}
        self.parts: dict[str, frozenset[str]] = {}
        self._by_name: dict[str, list[Function]] = defaultdict(list)
        self._imports: dict[str, dict[str, str]] = defaultdict(dict)
        self._bases: dict[str, set[str]] = defaultdict(set)
        for package in PACKAGES:
            for path in sorted((ROOT / package).rglob("*.py")):
                file = path.relative_to(ROOT).as_posix()
                if file.startswith(CPU_ALONE):
                    continue
                self._collect(ast.parse(path.read_text("utf-8")), "", file, is_inner=False)

    def reached(self, roots: Iterable[str], excluded: frozenset[str]) -> list[Function]:
        """What may run when some functions do.

        Args:
            roots: their names, ``file:name``.
            excluded: names of functions and classes that are left out with all in them.

        Raises:
            KeyError: there is no such root.
        """
        seen = {root: self.all[root] for root in roots}
        rest = list(seen.values())
        while rest:
            function = rest.pop()
            for name in function.calls:
                for other in self._meant(name, function):
                    if str(other) not in seen and not self.parts[str(other)] & excluded:
                        seen[str(other)] = other
                        rest.append(other)
        return list(seen.values())

    def _collect(self, node: ast.AST, prefix: str, file: str, *, is_inner: bool) -> None:
        for child in ast.iter_child_nodes(node):
            match child:
                case ast.FunctionDef(name=name):
                    found = Function(prefix + name, file, child, _called(child))
                    names = [name]
                    is_kernel = file.startswith("kernels/") and not prefix
                    if is_kernel or (is_inner and not file.startswith("runner/gpu/")):
                        names.append(STORED)
                    if name == "__init__":
                        names.append(found.owner)  # calling a class makes one
                    self._add(found, names)
                    self._collect(child, f"{prefix}{name}.", file, is_inner=True)
                case ast.Lambda():
                    found = Function(f"{prefix}<lambda>", file, child, _called(child))
                    self._add(found, [] if file.startswith("runner/gpu/") else [STORED])
                    self._collect(child, prefix, file, is_inner=True)
                case ast.ClassDef(name=name, bases=bases):
                    self._bases[name] |= {base.id for base in bases if isinstance(base, ast.Name)}
                    self._collect(child, f"{prefix}{name}.", file, is_inner=False)
                case ast.ImportFrom(module=str(module), names=aliases):
                    whence = module.removeprefix("gatewayd_engine.").replace(".", "/") + ".py"
                    names_here = {alias.asname or alias.name: whence for alias in aliases}
                    self._imports[file].update(names_here)
                    self._collect(child, prefix, file, is_inner=is_inner)
                case _:
                    self._collect(child, prefix, file, is_inner=is_inner)

    def _add(self, function: Function, names: list[str]) -> None:
        if str(function) in self.all:
            # A second lambda, or the other half of a property.
            function = replace(function, name=f"{function.name}:{len(self.all)}")
        self.all[str(function)] = function
        inner = accumulate(function.name.split("."), "{}.{}".format)
        self.parts[str(function)] = frozenset({f"{function.file}:{name}" for name in inner})
        for name in names:
            self._by_name[name].append(function)

    def _meant(self, name: str, caller: Function) -> list[Function]:
        """What a name may stand for."""
        bare = name.rpartition(".")[2]
        found = self._by_name.get(bare, [])
        near = [other for other in found if other.file == caller.file]
        if name.startswith("self."):
            kin = self._kin(caller.name.split(".")[0])
            return [other for other in found if other.owner in kin] or self._by_name[STORED]
        if name.startswith("."):
            # A method that no class has is a tensor's.
            return found
        if near:
            return near
        if whence := self._imports[caller.file].get(bare):
            return [other for other in found if other.file == whence]
        return [] if hasattr(builtins, bare) else self._by_name[STORED]

    def _kin(self, name: str) -> set[str]:
        """A class, what it is derived from, and what is derived from it."""
        derived: dict[str, set[str]] = defaultdict(set)
        for other, bases in self._bases.items():
            for base in bases:
                derived[base].add(other)
        return _closed(name, self._bases) | _closed(name, derived)


def _closed(name: str, further: Mapping[str, set[str]]) -> set[str]:
    found, rest = {name}, [name]
    while rest:
        new = further.get(rest.pop(), set()) - found
        found |= new
        rest += new
    return found


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
