"""The store: huggingface's cache, compared with what its library finds there."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import scan_cache_dir
from typer.testing import CliRunner

from gatewayd.cli import app
from gatewayd.hub import errors
from gatewayd.hub.errors import HubError
from gatewayd.hub.local_models import LocalModels
from gatewayd.hub.pull import pull
from gatewayd.hub.reference import parse_reference
from gatewayd.hub.store import stored_path
from gatewayd.hub.stored_models import StoreEntry, delete_stored, list_stored
from tests.gatewayd.hub.fake_hub import FakeHub
from tests.gatewayd.hub.models import content, gguf, sharded, single


def pulled(name: str, *patterns: str) -> str:
    return pull(parse_reference(name), patterns, report=lambda _: None)


def listed() -> dict[str, StoreEntry]:
    return {str(entry.reference): entry for entry in list_stored()}


def deleted(name: str) -> int:
    return delete_stored(parse_reference(name))


def num_bytes(store: Path) -> int:
    return sum(repo.size_on_disk for repo in scan_cache_dir(store).repos)


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"XDG_CACHE_HOME": "/x/cache"},
        {"HF_HOME": "/x/home"},
        {"HF_HOME": "~/y", "XDG_CACHE_HOME": "/x/cache"},
        {"HF_HUB_CACHE": "$HOME/z", "HF_HOME": "/x/home"},
        {"HUGGINGFACE_HUB_CACHE": "/old"},
    ],
)
def test_the_folder_is_the_librarys(variables: dict[str, str]) -> None:
    code = (
        "from gatewayd.hub.store import store_folder; from huggingface_hub import constants;"
        " print(store_folder(), constants.HF_HUB_CACHE)"
    )
    environment = {"PYTHONPATH": os.pathsep.join(sys.path), "HOME": "/h/someone", **variables}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True
    )
    ours, theirs = done.stdout.split()
    assert ours == theirs


def test_an_empty_store_lists_nothing(store: Path) -> None:
    assert list_stored() == []


def test_each_model_is_listed_by_the_name_that_serves_it(hub: FakeHub, store: Path) -> None:
    hub.repos = {"a/single": single(), "a/gguf": gguf(), "b/sharded": sharded()}
    hub.repos["b/sharded"].revisions["v1"] = hub.repos["b/sharded"].commit
    pulled("a/single")
    pulled("a/gguf", "*.gguf")
    pulled("b/sharded@v1")
    found = listed()
    assert sorted(found) == ["a/gguf:Q4_K_M", "a/gguf:Q8_0", "a/single", "b/sharded@v1"]
    for name, entry in found.items():
        assert not entry.problem
        path = stored_path(f"hf:{name}")
        assert entry.commit in str(path)
    assert [found["a/single"].family, found["a/single"].format] == ["llama", "safetensors"]
    assert found["a/gguf:Q8_0"].dtype == "Q8_0"
    # The library counts the same bytes.
    assert found["a/single"].size + found["b/sharded@v1"].size == sum(
        repo.size_on_disk for repo in scan_cache_dir(store).repos if "gguf" not in repo.repo_id
    )


def test_the_context_is_that_of_the_language_model(hub: FakeHub, store: Path) -> None:
    repo = hub.repos["a/b"] = single()
    repo.change({"config.json": b'{"text_config": {"max_position_embeddings": 512}}'})
    pulled("a/b")
    assert listed()["a/b"].context_length == 512


def test_what_is_incomplete_is_listed_with_the_reason(hub: FakeHub, store: Path) -> None:
    hub.repos["a/b"] = sharded()
    pulled("a/b")
    (stored_path("hf:a/b") / "model-00002-of-00002.safetensors").unlink()
    assert "model-00002-of-00002.safetensors" in listed()["a/b"].problem
    with pytest.raises(HubError, match="gatewayd model pull a/b"):
        stored_path("hf:a/b")


def test_one_quantization_is_deleted_and_the_rest_stays(hub: FakeHub, store: Path) -> None:
    hub.repos["a/b"] = gguf()
    pulled("a/b", "*.gguf")
    before = num_bytes(store)
    assert deleted("a/b:Q4_K_M") >= 20_000
    assert num_bytes(store) == before - 20_000
    assert sorted(listed()) == ["a/b:Q8_0"]
    assert stored_path("hf:a/b:Q8_0").read_bytes() == hub.repos["a/b"].files["Small-q8_0.gguf"]
    deleted("a/b")
    assert not any(scan_cache_dir(store).repos)


def test_an_old_commit_is_deleted_without_the_files_of_the_new_one(
    hub: FakeHub, store: Path
) -> None:
    repo = hub.repos["a/b"] = single()
    old = pulled("a/b")
    repo.change({"model.safetensors": content("new")})
    pulled("a/b")
    assert sorted(listed()) == ["a/b", f"a/b@{old}"]
    deleted(f"a/b@{old}")
    assert sorted(listed()) == ["a/b"]
    folder = stored_path("hf:a/b")
    assert {path.name: path.read_bytes() for path in folder.iterdir()}.items() <= repo.files.items()
    assert len(scan_cache_dir(store).warnings) == 0


def test_what_is_served_is_not_deleted(hub: FakeHub, store: Path) -> None:
    repo = single()
    repo.change({"b-Q8_0.gguf": content("gguf")})
    hub.repos = {"a/b": repo}
    pulled("a/b")
    pulled("a/b:Q8_0")
    for name, served in [("a/b", "hf:a/b"), ("a/b:Q8_0", "hf:a/b:Q8_0"), ("a/b", "hf:a/b:Q8_0")]:
        daemon = LocalModels([stored_path(served)])
        with pytest.raises(HubError, match="is being served") as caught:
            deleted(name)
        assert caught.value.code == errors.IN_USE
        del daemon
    daemon = LocalModels([stored_path("hf:a/b")])
    deleted("a/b:Q8_0")
    del daemon
    assert sorted(listed()) == ["a/b"]


@pytest.mark.parametrize(
    ("number", "code"),
    [
        *((errno.ENOSPC, errors.NO_SPACE), (errno.EDQUOT, errors.NO_SPACE)),
        *((errno.ENOENT, errors.NO_STORE), (errno.EACCES, errors.NO_STORE)),
    ],
)
async def test_only_a_full_disk_is_called_one(
    store: Path, monkeypatch: pytest.MonkeyPatch, number: int, code: str
) -> None:
    def fails() -> list[StoreEntry]:
        raise OSError(number, "a reason", "/store")

    monkeypatch.setattr("gatewayd.hub.local_models.list_stored", fails)
    with pytest.raises(HubError, match="/store: a reason") as caught:
        await LocalModels().list()
    assert caught.value.code == code
    monkeypatch.setattr("gatewayd.cli.operate.stored_models.list_stored", fails)
    done = CliRunner().invoke(app, ["model", "list"])
    assert (done.exit_code, "/store: a reason" in done.output) == (1, True)


def test_what_is_not_there_cannot_be_deleted(store: Path) -> None:
    with pytest.raises(HubError) as caught:
        deleted("a/b")
    assert caught.value.code == errors.NOT_STORED


def test_a_link_out_of_the_store_is_removed_and_not_followed(
    hub: FakeHub, store: Path, tmp_path: Path
) -> None:
    hub.repos["a/b"] = gguf()
    pulled("a/b", "*.gguf")
    outside = tmp_path / "outside.gguf"
    outside.write_bytes(b"kept")
    link = stored_path("hf:a/b:Q8_0")
    link.unlink()
    link.symlink_to(outside)
    deleted("a/b:Q8_0")
    assert outside.read_bytes() == b"kept"
    assert not link.is_symlink()
