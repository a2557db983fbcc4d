"""Embedded models: shipped in the package."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gatewayd_engine.model import embedded


def test_both_models_are_there_with_all_that_serving_needs() -> None:
    assert embedded.names() == ("nano", "nano-draft")
    for name in embedded.names():
        files = {path.name for path in embedded.folder(name).iterdir()}
        assert {"config.json", "generation_config.json", "tokenizer.json"} <= files
        assert "tokenizer_config.json" in files


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="nano, nano-draft"):
        embedded.folder("../nano")


def test_asking_for_the_folder_imports_no_torch() -> None:
    code = "import sys; from gatewayd_engine.model import embedded; embedded.folder(); "
    code += "from gatewayd_engine.model import spec; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
