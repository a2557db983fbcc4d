"""Symbols of Python's standard library, parsed from its source without importing it."""

from __future__ import annotations

import ast
import sysconfig
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

SKIPPED_FOLDERS = {
    "__pycache__",
    "encodings",
    "ensurepip",
    "idle_test",
    "idlelib",
    "lib2to3",
    "pydoc_data",
    "site-packages",
    "test",
    "tests",
    "turtledemo",
}


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A source file and its path below the library's root."""

    path: Path
    text: str

    @property
    def module(self) -> str:
        """Dotted module name: ``json/__init__.py`` is ``json``."""
        return ".".join(self.path.with_suffix("").parts).removesuffix(".__init__")


@dataclass(frozen=True, slots=True)
class Symbol:
    """A public module, class, function or method.

    Attributes:
        qualified: dotted name, including the module.
        module: where it is defined.
        name: last part of the dotted name, or the whole of a module's.
        kind: ``module``, ``class``, ``function`` or ``method``.
        doc: docstring, None when there is none.
        signature: of a function or method.
        source: dedented, empty for a module.
        arguments: names, without self and cls.
    """

    qualified: str
    module: str
    name: str
    kind: str
    doc: str | None
    signature: str | None = None
    source: str = ""
    arguments: tuple[str, ...] = ()


def library_root() -> Path:
    """Return the folder of the running Python's standard library."""
    return Path(sysconfig.get_paths()["stdlib"])


def source_files(root: Path) -> list[SourceFile]:
    """Read the source files below a folder, sorted, without tests and generated data."""
    found = []
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        folders = relative.parts[:-1]
        if any(name in SKIPPED_FOLDERS or name.startswith("config-") for name in folders):
            continue
        try:
            found.append(SourceFile(relative, path.read_text("utf-8")))
        except UnicodeDecodeError:
            continue  # the few files in other encodings are test data
    return found


def symbols(files: Sequence[SourceFile]) -> list[Symbol]:
    """Collect the public symbols of files, in order; files with syntax errors are skipped."""
    found: list[Symbol] = []
    for file in files:
        try:
            tree = ast.parse(file.text)
        except SyntaxError:
            continue
        lines = file.text.split("\n")
        found.extend(_definitions(tree, lines, file.module, file.module, depth=0))
        doc = ast.get_docstring(tree)
        if doc:
            found.append(Symbol(file.module, file.module, file.module, "module", doc))
    return found


def _definitions(
    parent: ast.Module | ast.ClassDef, lines: Sequence[str], module: str, prefix: str, depth: int
) -> Iterator[Symbol]:
    for node in parent.body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if node.name.startswith("_"):
            continue
        qualified = f"{prefix}.{node.name}"
        # Not ast.get_source_segment, which splits the whole file again for every symbol.
        source = textwrap.dedent("\n".join(lines[node.lineno - 1 : node.end_lineno]))
        doc = ast.get_docstring(node)
        if isinstance(node, ast.ClassDef):
            yield Symbol(qualified, module, node.name, "class", doc, source=source)
            # Methods, but nothing nested deeper.
            if depth == 0:
                yield from _definitions(node, lines, module, qualified, depth + 1)
        else:
            yield Symbol(
                qualified,
                module,
                node.name,
                "method" if depth else "function",
                doc,
                f"{node.name}({ast.unparse(node.args)})",
                source,
                tuple(arg.arg for arg in node.args.args if arg.arg not in ("self", "cls")),
            )
