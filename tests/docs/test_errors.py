"""docs/api/errors.md: lists exactly the codes that the gateway answers with."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gatewayd import errors
from gatewayd.errors import GatewayError
from gatewayd_hooks.requests import checking, strict_json
from tests.docs.project import ROOT, document, modules

ROW = re.compile(r"^\| (\d{3}) \| (`\w+`(?:, `\w+`)*) \|", re.MULTILINE)
KINDS = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, GatewayError)
}


def raised() -> Iterator[tuple[int, str]]:
    """Status and code of every error: a class's own, and those given where it is raised."""
    yield from ((kind.status, kind.code) for kind in KINDS.values())
    yield from refused()
    for path, tree in modules().items():
        if ROOT / "gatewayd" not in path.parents:
            continue
        for node in ast.walk(tree):
            match node:
                case ast.Call(func=ast.Name(id=name), keywords=keywords) if name in KINDS:
                    for given in (k.value for k in keywords if k.arg == "code"):
                        assert isinstance(given, ast.Constant), f"{path}:{node.lineno}"
                        yield KINDS[name].status, str(given.value)


def refused() -> Iterator[tuple[int, str]]:
    """The same of what the reader of JSON and the tables of fields refuse."""
    nodes = (
        node
        for module in (checking, strict_json)
        for node in ast.walk(modules()[Path(str(module.__file__))])
    )
    for node in nodes:
        match node:
            case ast.Call(
                func=ast.Name(id="RequestRefusal"), args=[ast.Constant(value=status), *_]
            ):
                codes = [k.value for k in node.keywords if k.arg == "code"]
                yield from ((int(str(status)), ast.literal_eval(code)) for code in codes)


def documented() -> list[tuple[int, str]]:
    part, _, _ = document("docs/api/errors.md").prose.partition("\n## ")
    return [
        (int(status), code)
        for status, codes in ROW.findall(part)
        for code in re.findall(r"\w+", codes)
    ]


def test_every_code_is_documented_with_its_status_and_back() -> None:
    found = documented()
    assert sorted(found) == sorted(set(raised()))
    assert len(found) > 20


@pytest.mark.parametrize("name", sorted(KINDS.keys() - {"GatewayError"}))
def test_the_tree_of_errors_shows_every_class(name: str) -> None:
    tree = errors.__doc__ or ""
    kind = KINDS[name]
    assert re.search(rf"── {name} +{kind.status}  {kind.code}( |$)", tree, re.MULTILINE)
