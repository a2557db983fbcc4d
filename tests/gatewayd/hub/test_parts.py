"""Pulls of one part of a repository change nothing of what the others serve."""

from __future__ import annotations

from pathlib import Path

import pytest
from huggingface_hub import scan_cache_dir

from gatewayd.hub import errors
from gatewayd.hub.errors import HubError
from gatewayd.hub.reference import parse_reference
from gatewayd.hub.store import stored_path
from gatewayd.hub.stored_models import delete_stored, list_stored
from tests.gatewayd.hub.fake_hub import FakeHub
from tests.gatewayd.hub.models import content, gguf, single
from tests.gatewayd.hub.pulls import pulled


def names() -> list[str]:
    return [str(entry.reference) for entry in list_stored() if not entry.problem]


def unstored(name: str) -> str:
    with pytest.raises(HubError) as caught:
        stored_path(f"hf:{name}")
    return caught.value.code


def test_safetensors_stay_served_when_a_gguf_of_a_newer_commit_is_pulled(
    hub: FakeHub, store: Path
) -> None:
    repo = hub.repos["o/a"] = single()
    repo.change({"a-Q8_0.gguf": content("gguf")})
    pulled("o/a")
    before = stored_path("hf:o/a")
    repo.change({"README.md": b"new"})
    pulled("o/a:Q8_0")
    assert stored_path("hf:o/a") == before
    assert stored_path("hf:o/a:Q8_0").parent != before
    assert names() == ["o/a", "o/a:Q8_0"]
    assert not scan_cache_dir(store).warnings
    pulled("o/a")
    assert stored_path("hf:o/a").name == repo.commit
    assert names() == ["o/a", "o/a:Q8_0", f"o/a@{before.name}"]


def test_a_gguf_is_never_served_in_place_of_safetensors(hub: FakeHub, store: Path) -> None:
    repo = hub.repos["o/a"] = single()
    repo.change({"a-Q8_0.gguf": content("gguf")})
    pulled("o/a:Q8_0")
    assert unstored("o/a") == errors.NOT_STORED
    assert names() == ["o/a:Q8_0"]


def test_a_quantization_stays_served_when_another_of_a_newer_commit_is_pulled(
    hub: FakeHub, store: Path
) -> None:
    repo = hub.repos["o/a"] = gguf()
    pulled("o/a:Q4_K_M")
    before = stored_path("hf:o/a:Q4_K_M")
    repo.change({"README.md": b"new"})
    pulled("o/a:Q8_0")
    assert stored_path("hf:o/a:Q4_K_M") == before
    assert unstored("o/a") == errors.NO_CHOICE
    assert names() == ["o/a:Q4_K_M", "o/a:Q8_0"]
    for name in names():
        delete_stored(parse_reference(name))
    assert unstored("o/a:Q4_K_M") == errors.NOT_STORED
    assert not (store / "models--o--a").exists()


def test_what_is_deleted_does_not_come_back_from_an_older_commit(hub: FakeHub, store: Path) -> None:
    repo = hub.repos["o/a"] = gguf()
    for text in (b"1", b"2"):
        repo.change({"README.md": text})
        pulled("o/a:Q4_K_M")
    repo.change({"README.md": b"3"})
    pulled("o/a:Q8_0")
    delete_stored(parse_reference("o/a:Q4_K_M"))
    assert unstored("o/a:Q4_K_M") == errors.NOT_STORED
    assert names() == ["o/a:Q8_0"]
    pulled("o/a:Q4_K_M")
    delete_stored(parse_reference("o/a"))
    assert list_stored() == []


def test_another_branch_is_not_served_in_place_of_one(hub: FakeHub, store: Path) -> None:
    repo = hub.repos["o/a"] = single()
    repo.revisions["dev"] = repo.commit
    pulled("o/a@dev")
    repo.change({"a-Q8_0.gguf": content("gguf")})
    pulled("o/a:Q8_0")
    assert unstored("o/a") == errors.NOT_STORED
    assert stored_path("hf:o/a@dev").name == repo.revisions["dev"]


def test_a_ref_of_another_tool_leads_to_no_other_folder(hub: FakeHub, store: Path) -> None:
    hub.repos["o/a"] = single()
    pulled("o/a")
    outside = store.parent / "outside"
    stored_path("hf:o/a").rename(outside)
    (store / "models--o--a" / "refs" / "main").write_text("../../../outside")
    assert unstored("o/a") == errors.NOT_STORED
    with pytest.raises(HubError, match="is not in"):
        delete_stored(parse_reference("o/a"))
    assert outside.is_dir()
