"""Library internals in use: private parts that we override or call, unchanged.

A release that renames a callback of the HTTP parser takes one of our limits away without an error.
Here it fails. Look at what has changed, mend our side, and only then raise the ceiling in
``pyproject.toml``.
"""

from __future__ import annotations

import ast
import inspect
import sys
import tomllib
from pathlib import Path
from typing import Any

import jinja2
import pytest
import torch
import uvicorn
from packaging.requirements import Requirement
from pydantic_settings import BaseSettings, EnvSettingsSource
from textual.app import App
from textual_serve.server import Server as TextualServer
from uvicorn.protocols.http import httptools_impl

from tests.security.test_sources import ROOT, trees

PROTOCOL = {
    "connection_made": "transport",
    "connection_lost": "exc",
    "eof_received": "",
    "_unset_keepalive_if_required": "",
    "_get_upgrade": "",
    "_should_upgrade_to_ws": "",
    "_unsupported_upgrade_warning": "",
    "_should_upgrade": "",
    "data_received": "data",
    "handle_websocket_upgrade": "",
    "send_400_response": "msg",
    "on_message_begin": "",
    "on_url": "url",
    "on_header": "name, value",
    "on_headers_complete": "",
    "_start_asgi_task": "cycle, app",
    "on_body": "body",
    "on_message_complete": "",
    "on_response_complete": "",
    "shutdown": "",
    "pause_writing": "",
    "resume_writing": "",
    "timeout_keep_alive_handler": "",
}
"""All methods of uvicorn's connection: one more may be one more way for bytes to come in."""

METHODS: list[tuple[Any, str, str]] = [
    (uvicorn.Server, "capture_signals", "self"),
    (jinja2.Environment, "_parse", "self, source, name, filename"),
    (TextualServer, "_make_app", "self"),
    (TextualServer, "on_startup", "self, app"),
]
"""Others that we override."""

OPERATORS = {
    "aten._int_mm": "Tensor self, Tensor mat2",
    "aten._scaled_mm": "Tensor self, Tensor mat2, Tensor scale_a, Tensor scale_b,"
    " Tensor? bias=None, Tensor? scale_result=None, ScalarType? out_dtype=None,"
    " bool use_fast_accum=False",
    "aten._weight_int8pack_mm": "Tensor self, Tensor mat2, Tensor scales",
    "aten._convert_weight_to_int4pack_for_cpu": "Tensor self, int innerKTiles",
    "aten._weight_int4pack_mm_for_cpu": "Tensor self, Tensor mat2, int qGroupSize,"
    " Tensor qScaleAndZeros",
    "onednn.qlinear_prepack": "Tensor weight, int[]? x_shape",
    "onednn.qlinear_pointwise": "Tensor qx, float x_scale, int x_zero_point, Tensor qw,"
    " Tensor w_scale, Tensor w_zero_point, Tensor? bias, float output_scale,"
    " int output_zero_point, ScalarType? output_dtype, str post_op_name, Scalar?[] post_op_args,"
    " str post_op_algorithm",
    "quantized.embedding_bag_4bit_prepack": "Tensor weight, bool optimized_qparams=False,"
    " int nbins=200, float ratio=0.16",
    "quantized.embedding_bag_4bit_unpack": "Tensor weight",
}
"""Of torch, with their arguments."""

OTHERS = {"_pytest.reports.CollectReport", "_pytest.reports.TestReport"} | {
    "xgrammar.TokenizerInfo._detect_metadata_from_hf",
    *("torch._C", "torch._C._cuda_endAllocateToPool"),
}
"""Names with an underscore that are there or not."""

ON_A_GPU = {"_int_workspace_buffer", "_pin_memory_int_workspace_buffer", "_cached_module"}
"""Of FlashInfer; tests/engine/attention/test_flashinfer_signatures.py finds them in its wheel."""

CEILINGS = {
    *("uvicorn", "httptools", "jinja2", "starlette", "textual", "textual-serve", "torch", "pytest"),
    *("xgrammar", "llguidance", "flashinfer-python", "humming-kernels", "pydantic-settings"),
    "transformers",
}


def arguments(method: Any) -> str:
    return ", ".join(inspect.signature(method).parameters)


def test_a_connection_has_the_methods_that_the_edge_knows() -> None:
    found = {
        name: arguments(method).removeprefix("self").removeprefix(", ")
        for name, method in vars(httptools_impl.HttpToolsProtocol).items()
        if inspect.isfunction(method) and name != "__init__"
    }
    assert found == PROTOCOL


@pytest.mark.parametrize(
    "files",
    [
        ("gatewayd/http/server/edge.py", "gatewayd/http/server/edge_parsing.py"),
        ("gatewayd/admin/peer.py",),
    ],
)
def test_what_the_edge_reads_of_a_connection_is_there(files: tuple[str, ...]) -> None:
    """Every attribute that our class uses and does not make itself is made by uvicorn's."""
    source = ast.parse(Path(httptools_impl.__file__).read_text())
    protocol, cycle = (
        made_by(source, name) for name in ("HttpToolsProtocol", "RequestResponseCycle")
    )
    ours, used, used_of_cycle = set[str](), set[str](), set[str]()
    for tree in map(trees().__getitem__, files):
        for one in [node for node in tree.body if isinstance(node, ast.ClassDef)]:
            ours |= made_by(tree, one.name)
        used |= attributes(tree, "self")
        used_of_cycle |= attributes(tree, "cycle")
    assert used - ours <= protocol | set(PROTOCOL)
    assert used_of_cycle <= cycle
    if "edge" in files[0]:
        assert {"cycle", "flow", "parser", "timeout_keep_alive_task"} <= used
        assert used_of_cycle >= {"response_complete", "disconnected"}


def made_by(tree: ast.Module, name: str) -> set[str]:
    """Attributes that a class has or assigns."""
    (found,) = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name]
    stored = {
        node.attr
        for node in ast.walk(found)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and ast.unparse(node.value) == "self"
    }
    for node in found.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            stored.add(node.name)
        elif isinstance(node, ast.AnnAssign):
            stored.add(ast.unparse(node.target))
        elif isinstance(node, ast.Assign):
            stored |= {ast.unparse(target) for target in node.targets}
    return stored


def attributes(tree: ast.Module, of: str) -> set[str]:
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == of
    }


@pytest.mark.parametrize(("owner", "name", "expected"), METHODS)
def test_what_we_override_is_still_called_so(owner: Any, name: str, expected: str) -> None:
    assert arguments(getattr(owner, name)) == expected


def test_an_environment_is_read_from_where_we_put_it() -> None:
    """``gatewayd/config/load.py`` replaces it: with another name our rules were passed by."""

    class Settings(BaseSettings):
        port: int = 1

    source = EnvSettingsSource(Settings)
    assert "env_vars" in vars(source)
    source.env_vars = {"port": "2"}
    assert source() == {"port": "2"}


def test_the_consoles_app_has_its_stack_of_screens() -> None:
    assert isinstance(inspect.getattr_static(App, "_screen_stack"), property)


@pytest.mark.parametrize("name", OPERATORS)
def test_torchs_operators_take_what_we_give_them(name: str) -> None:
    space, _, operator = name.partition(".")
    schema = str(getattr(getattr(torch.ops, space), operator).default._schema)
    assert schema.partition("(")[2].rpartition(") -> ")[0] == OPERATORS[name]


def private_parts(tree: ast.Module) -> set[str]:
    """Dotted names below an import that have an underscore, and torch's operators."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {a.asname or a.name.split(".")[0]: a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    found = {name for name in names.values() if "._" in f".{name}"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and "(" not in (text := ast.unparse(node)):
            first, _, rest = text.partition(".")
            if first in names and ("._" in f".{rest}" or (rest.count(".") == 2 and "ops." in rest)):
                found.add(f"{names[first]}.{rest}")
    return {
        name
        for name in found
        if "__" not in name
        and not name.startswith("gatewayd")
        and name.split(".")[0] not in sys.stdlib_module_names
    }


def test_every_private_part_of_a_library_is_listed() -> None:
    found = set[str]().union(*map(private_parts, trees().values()))
    operators = {f"torch.{name}".replace("torch.aten.", "torch.") for name in OPERATORS}
    listed = {name.replace("torch.onednn", "torch.ops.onednn") for name in operators}
    listed = {name.replace("torch.quantized", "torch.ops.quantized") for name in listed}
    assert found == listed | OTHERS


def test_who_is_used_so_has_a_ceiling() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    required = [Requirement(line) for lines in lists for line in lines]
    assert {one.name for one in required} >= CEILINGS
    for one in required:
        if one.name in CEILINGS:
            assert any(each.operator in ("<", "<=") for each in one.specifier), str(one)
