"""Downloads of models: the one module that makes them, and what it gets and may fetch."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import PurePosixPath

import pytest

from gatewayd.hub.pull_process import pull_environment
from gatewayd.hub.repo_files import ALLOWED, is_allowed
from gatewayd_hooks.helpers import children
from tests.security.test_advisories import sources

DATA = {".safetensors", ".gguf", ".json", ".jinja", ".model", ".txt"}


def importers(library: str) -> set[str]:
    """Modules that import a library, by path."""
    found = set()
    # Parsing all of them takes seconds.
    for path, text in ((path, text) for path, text in sources().items() if library in text):
        for node in ast.walk(ast.parse(text)):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            if any(name.partition(".")[0] == library for name in names):
                found.add(path)
    return found


def test_one_module_alone_talks_to_the_hub() -> None:
    assert importers("huggingface_hub") == {"gatewayd/hub/client.py"}


def test_the_daemon_does_not_load_it() -> None:
    code = (
        "import sys, gatewayd.daemon.run, gatewayd.hub.pull_process, gatewayd.hub.stored_models;"
        " print([name for name in ('huggingface_hub', 'httpx2', 'hf_xet') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "[]\n"


def test_only_data_may_be_fetched() -> None:
    assert {PurePosixPath(pattern).suffix for pattern in ALLOWED} == DATA
    for name in ("modeling_x.py", "pytorch_model.bin", "x.pt", "x.so", "setup.cfg", "README.md"):
        assert not is_allowed(name)


def test_a_pull_alone_gets_the_hubs_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("GATEWAYD_API_KEY", "ours")
    assert "hf_secret" not in children.environment().values()
    environment = pull_environment()
    assert environment["HF_TOKEN"] == "hf_secret"
    assert "ours" not in environment.values()
