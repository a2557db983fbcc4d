"""Generator of the plugin reference in docs/plugins: hooks, kinds, types and tests.

``python -m gatewayd.cli.authoring.reference docs/plugins`` regenerates it from the contract.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from gatewayd.cli.authoring.docstrings import fields_of, markdown, plain
from gatewayd.cli.authoring.kit import conformance_of
from gatewayd_hooks import console, events, hookspecs, multiplying, resources, strategy
from gatewayd_hooks.helpers import shortage, waiting
from gatewayd_hooks.host.catalog import Catalog
from gatewayd_hooks.host.kinds import KINDS
from gatewayd_hooks.requests import answers, checking, gateway, http, refusal, tables
from gatewayd_hooks.strategy import Kind
from gatewayd_hooks.upstreams import relaying

_SHARED = (strategy, resources, events, waiting, shortage, console)
"""Modules of types that all kinds share; types of one kind are in the module of its Protocol."""
_REGISTERING, _OBSERVING, _CONSOLE = "registering", "observing", "console"
"""Groups of hooks."""
_GROUPS = (
    (
        _REGISTERING,
        "Registration hooks",
        "Called only on the chosen plugin. Returns its strategies; the one whose `name` is that\n"
        "of the entry point is used. Several logits processors may be chosen; they run in the\n"
        "order of `[logits_processor] strategies`.",
    ),
    (_OBSERVING, "Observing hooks", "Called on every [observer](../observers.md)."),
    (_CONSOLE, "Console hooks", "Called on [plugins of the console](../console.md)."),
)
_GENERATED = "Generated from the contract, `gatewayd_hooks`."
_GUIDES_WITH_TESTS = {"observers.md": Kind.OBSERVER, "console.md": Kind.CONSOLE}
"""Guides of kinds without a strategy, which list the kit's tests."""
_OFFERS = {spec.hook: kind for kind, spec in KINDS.items()}
_OF_PROTOCOLS = (refusal, http, answers, gateway, tables, checking)
"""Further modules of types for protocol plugins."""
_OF_UPSTREAMS = (relaying,)
"""Further modules of types for upstreams."""
_OF_QUANTIZERS = (multiplying,)
"""Further modules of types for quantizers."""
_WITH_FUNCTIONS = (strategy, checking)


def reference(folder: Path) -> dict[Path, str]:
    """Generate the text of all reference pages, and of guides with a generated part.

    Args:
        folder: docs/plugins, from which the guides are read.

    Raises:
        ValueError: a guide has no markers for its generated part.
    """
    guides = {
        folder / name: _filled(folder / name, kind) for name, kind in _GUIDES_WITH_TESTS.items()
    }
    kinds = {f"kinds/{kind}.md": f"{_kind(kind)}\n" for kind in KINDS}
    pages = {"hooks.md": _all_hooks(), "types.md": _all_types(), "kinds/README.md": _all_kinds()}
    return guides | {folder / "reference" / name: text for name, text in (pages | kinds).items()}


def _filled(guide: Path, kind: Kind) -> str:
    """Replace the part of a guide between the markers by the kit's tests of its kind."""
    text = guide.read_text(encoding="utf-8")
    head, begin, rest = text.partition(f"<!-- {kind} -->\n")
    _, end, tail = rest.partition("<!-- end -->")
    if not (begin and end):
        raise ValueError(f"{guide.name} has no markers for {kind}")
    return f"{head}{begin}\n{_tests(kind)}\n\n{end}{tail}"


def _all_hooks() -> str:
    parts = [f"# Hooks\n\n{_GENERATED}"]
    for group, title, meaning in _GROUPS:
        parts += [f"## {title}", meaning, *_hooks(group)]
    return "\n\n".join(parts) + "\n"


def _all_kinds() -> str:
    rows = ["| kind | strategy | summary |", "| --- | --- | --- |"]
    for kind, spec in KINDS.items():
        summary = plain(inspect.getdoc(spec.protocol)).partition(". ")[0].rstrip(".")
        rows.append(f"| [`{kind}`]({kind}.md) | `{spec.protocol.__name__}` | {summary} |")
    return "\n\n".join(["# Kinds of strategies", _GENERATED, "\n".join(rows)]) + "\n"


def _all_types() -> str:
    order = "Types of all kinds come first, then those of each kind."
    return "\n\n".join([f"# Types\n\n{_GENERATED} {order}", *_types()]) + "\n"


def _hooks(group: str) -> Iterator[str]:
    """Yield a section for each hook of a group, with its signature as the title."""
    for node in _tree(hookspecs).body:
        if isinstance(node, ast.FunctionDef) and _group(node.name) == group:
            built_in = f"\n\n{_built_in(_OFFERS[node.name], 3)}" if node.name in _OFFERS else ""
            yield f"### `{_signature(node)}`\n\n{markdown(ast.get_docstring(node))}{built_in}"


def _group(hook: str) -> str:
    if hook in _OFFERS:
        return _REGISTERING
    return _CONSOLE if hook.startswith("gatewayd_console_") else _OBSERVING


def _kind(kind: Kind) -> str:
    """Generate the page of a kind: the methods of its strategies and the kit's tests."""
    protocol = KINDS[kind].protocol
    (node,) = _classes(_module_of(protocol), protocol.__name__)
    title = kind.value.replace("_", " ").capitalize().replace("Kv ", "KV ")
    lines = [
        f"# {title}: `{kind}`",
        "",
        f"`{protocol.__module__}.{protocol.__name__}`. {markdown(ast.get_docstring(node))}",
        "",
    ]
    own = {each.name: each for each in node.body if isinstance(each, ast.FunctionDef)}
    (base,) = _classes(strategy, "Strategy")
    shared = {each.name: each for each in base.body if isinstance(each, ast.FunctionDef)}
    # A kind's own text on a shared method replaces the general one; ``close`` comes last.
    for name, method in (shared | own).items():
        if name != "close":
            lines.append(_method(method))
    lines += [_method(shared["close"]), "", _built_in(kind, 4), "", _tests(kind)]
    return "\n".join(lines)


def _method(node: ast.FunctionDef) -> str:
    return f"- `{_signature(node)}`: {markdown(ast.get_docstring(node), indent='  ')}"


def _tests(kind: Kind) -> str:
    """List the kit's tests of a kind as sentences."""
    found = conformance_of(kind)
    sentences = [f"- {name.removeprefix('test_').replace('_', ' ')}" for name in found.tests]
    return "\n".join([f"What `{found.module}.{found.name}` tests:", "", *sentences])


def _types() -> Iterator[str]:
    """Yield every public class of the contract except the kinds' Protocols, with its fields."""
    protocols = {spec.protocol.__name__ for spec in KINDS.values()}
    modules = dict.fromkeys(_module_of(spec.protocol) for spec in KINDS.values())
    for module in (*_SHARED, *modules, *_OF_PROTOCOLS, *_OF_UPSTREAMS, *_OF_QUANTIZERS):
        nodes = [
            node
            for node in _classes(module)
            if not node.name.startswith("_") and node.name not in protocols
        ]
        if nodes or module in _WITH_FUNCTIONS:
            yield f"## `{module.__name__}`"
        for node in nodes:
            yield "\n\n".join([f"`{node.name}`: {plain(ast.get_docstring(node))}", *_table(node)])
        for function in _tree(module).body if module in _WITH_FUNCTIONS else ():
            if isinstance(function, ast.FunctionDef) and not function.name.startswith("_"):
                yield f"`{_signature(function)}`: {markdown(ast.get_docstring(function))}"


def _table(node: ast.ClassDef) -> list[str]:
    """Format fields and methods as a table; fields without descriptions as one line."""
    fields = fields_of(node)
    if fields and not any(meaning for _, meaning in fields):
        return [", ".join(f"`{name}`" for name, _ in fields)]
    rows = [f"| `{name}` | {meaning} |" for name, meaning in fields]
    rows += [
        f"| `{_cell(_signature(each))}` | {plain(ast.get_docstring(each))} |"
        for each in node.body
        if isinstance(each, ast.FunctionDef) and not each.name.startswith("_")
    ]
    return ["\n".join(["| | |", "| --- | --- |", *rows])] if rows else []


def _cell(text: str) -> str:
    """Escape pipes, which would end the cell of a table."""
    return text.replace("|", "\\|")


def _built_in(kind: Kind, depth: int) -> str:
    """Link to the built-in strategies of a kind, from a page ``depth`` folders below the root."""
    entries = [entry for entry in Catalog.installed().entries if entry.distribution == "gatewayd"]
    links = [
        f"[{entry.name}]({'../' * depth}plugins/{entry.module}/README.md)"
        for entry in entries
        if entry.kind == kind
    ]
    return f"Built in: {', '.join(links)}." if links else "None is built in."


def _signature(node: ast.FunctionDef) -> str:
    """Format a signature as in calls: without ``self``; properties without parentheses."""
    if any(isinstance(each, ast.Name) and each.id == "property" for each in node.decorator_list):
        return node.name
    arguments = ast.unparse(node.args).removeprefix("self, ").removeprefix("self")
    answer = "" if node.returns is None else f" -> {ast.unparse(node.returns)}"
    return f"{node.name}({arguments}){answer}"


def _module_of(protocol: type) -> ModuleType:
    return sys.modules[protocol.__module__]


def _classes(module: ModuleType, name: str | None = None) -> list[ast.ClassDef]:
    return [
        node
        for node in _tree(module).body
        if isinstance(node, ast.ClassDef) and name in (None, node.name)
    ]


def _tree(module: ModuleType) -> ast.Module:
    # Parsed, because docstrings of fields exist in the source only.
    return ast.parse(inspect.getsource(module))


if __name__ == "__main__":
    for page, text in reference(Path(sys.argv[1])).items():
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text, encoding="utf-8")
