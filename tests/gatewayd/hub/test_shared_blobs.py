"""Models in the layout that huggingface's library writes for Xet, compared with what it finds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from huggingface_hub import scan_cache_dir

from gatewayd.hub.reference import parse_reference
from gatewayd.hub.store import stored_path
from gatewayd.hub.stored_models import delete_stored
from tests.gatewayd.hub.fake_hub import FakeHub
from tests.gatewayd.hub.models import single
from tests.gatewayd.hub.pulls import pulled

HASH = "ab" * 32


def shared(store: Path, names: list[str]) -> Path:
    """Make the weights of models one shared content, as the library does."""
    target = store / "blobs" / HASH[:2] / HASH
    target.parent.mkdir(parents=True)
    (store / "blobs" / ".huggingface-shared-blobs").write_text("1\n")
    lines = []
    for name in names:
        blob = (stored_path(f"hf:{name}") / "model.safetensors").resolve()
        blob.replace(target)
        blob.symlink_to(os.path.relpath(target, blob.parent))
        lines.append(f"{blob.relative_to(store.resolve()).as_posix()}\n")
    target.with_name(f"{HASH}.refs").write_text("".join(lines))
    assert not scan_cache_dir(store).warnings
    return target


def test_the_last_delete_frees_a_shared_content(hub: FakeHub, store: Path) -> None:
    hub.repos = {"o/a": single(), "o/fork": single()}
    for name in hub.repos:
        pulled(name)
    target = shared(store, ["o/a", "o/fork"])
    assert delete_stored(parse_reference("o/fork")) < 20_000
    assert (stored_path("hf:o/a") / "model.safetensors").stat().st_size == 20_000
    assert delete_stored(parse_reference("o/a")) > 20_000
    assert not target.exists()
    found = scan_cache_dir(store)
    assert (found.size_on_disk, list(found.warnings)) == (0, [])


def test_one_of_several_commits_frees_its_shared_content(hub: FakeHub, store: Path) -> None:
    repo = hub.repos["o/a"] = single()
    pulled("o/a")
    old = stored_path("hf:o/a").name
    target = shared(store, ["o/a"])
    repo.change({"model.safetensors": b"new"})
    pulled("o/a")
    assert delete_stored(parse_reference(f"o/a@{old}")) > 20_000
    assert not target.exists()
    assert (stored_path("hf:o/a") / "model.safetensors").read_bytes() == b"new"


def test_a_damaged_shared_content_is_left_to_the_others(hub: FakeHub, store: Path) -> None:
    hub.repos = {"o/a": single()}
    pulled("o/a")
    target = shared(store, ["o/a"])
    target.write_bytes(b"damaged")
    pulled("o/a")
    assert target.read_bytes() == b"damaged"
    path = stored_path("hf:o/a") / "model.safetensors"
    assert path.read_bytes() == hub.repos["o/a"].files["model.safetensors"]
    assert path.resolve().parent == store.resolve() / "models--o--a" / "blobs"


@pytest.mark.parametrize("is_folder", [False, True])
def test_a_link_that_leads_elsewhere_is_not_followed(
    hub: FakeHub, store: Path, tmp_path: Path, is_folder: bool
) -> None:
    hub.repos = {"o/a": single()}
    pulled("o/a")
    outside = tmp_path / "outside" / HASH
    target = shared(store, ["o/a"])
    if is_folder:
        target.parent.rename(outside.parent)
        target.parent.symlink_to(outside.parent)
    else:
        outside.parent.mkdir()
        target.rename(outside)
        target.symlink_to(outside)
    delete_stored(parse_reference("o/a"))
    assert outside.stat().st_size == 20_000
    assert not (store / "models--o--a").exists()
