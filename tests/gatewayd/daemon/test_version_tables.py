"""The table of a version: the model's own, with what the version sets differently."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gatewayd.admin.changes import ChangeRefused
from gatewayd.config.load import load
from gatewayd.daemon.compose import compose
from gatewayd.daemon.options import DaemonOptions
from gatewayd.daemon.parts import DaemonParts

FILE = """
[server]
port = 0
[store]
path = "{folder}/store"
[model]
path = "embedded:nano"
max_model_len = 512
[models.a]
path = "embedded:nano"
served_names = ["more"]
memory = "1 GiB"
pinned = true
[models.a.engine]
kv_pages = 64
threads = 1
"""


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[DaemonParts]:
    file = tmp_path / "g.toml"
    file.write_text(FILE.format(folder=tmp_path))
    config = load(file, environ={}).config
    made = compose(config, DaemonOptions(reload=lambda: config), lambda _: None)
    yield made
    made.listening.close()
    made.durable.close()


def table(parts: DaemonParts, model: str, **stated: Any) -> dict[str, Any]:
    served = parts.deployments.served
    found = served.find(model)
    assert found is not None
    return served.table_of_version(found, {"path": "new", **stated}).model_dump(exclude_unset=True)


def test_settings_of_the_model_are_those_of_its_version(parts: DaemonParts) -> None:
    assert table(parts, "nano") == {"path": "new", "max_model_len": 512}
    kept = {"path": "new", "pinned": True, "engine": {"kv_pages": 64, "threads": 1}}
    # Neither names nor memory: another checkpoint may need more.
    assert table(parts, "a") == kept
    changed = {**kept, "engine": {"kv_pages": 32, "threads": 1}, "preload": False}
    assert table(parts, "a", engine={"kv_pages": 32}, preload=False) == changed


@pytest.mark.parametrize(
    ("model", "stated", "said"),
    [
        ("nano", {"engine": {"kv_pages": 32}}, r"engine: a version of \[model\] has the config"),
        ("a", {"served_names": ["x"]}, "served_names: a version has its model's names"),
        ("a", {"pth": "x"}, "pth"),
    ],
)
def test_what_a_version_cannot_set_is_refused(
    parts: DaemonParts, model: str, stated: dict[str, Any], said: str
) -> None:
    with pytest.raises(ChangeRefused, match=said):
        table(parts, model, **stated)
