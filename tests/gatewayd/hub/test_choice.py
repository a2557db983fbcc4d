"""Choice of a model's files."""

from __future__ import annotations

import json

import pytest

from gatewayd.hub.choice import INDEX, choose, include
from gatewayd.hub.errors import HubError
from gatewayd.hub.gguf_models import gguf_models
from gatewayd.hub.reference import parse_reference
from gatewayd.hub.repo_files import check_names, is_allowed

SMALL = ("config.json", "tokenizer.json")


def chosen(names: tuple[str, ...], name: str = "a/b", index: object = None) -> tuple[str, ...]:
    return choose(names, parse_reference(name), lambda: json.dumps(index).encode()).names


def labels(*names: str) -> list[str]:
    return [model.label for model in gguf_models(names)]


def test_the_index_comes_before_a_single_file() -> None:
    names = (*SMALL, INDEX, "model.safetensors", "x.safetensors", "adapter/x.json")
    index = {"weight_map": {"w": "x.safetensors"}}
    assert chosen(names, index=index) == ("x.safetensors", INDEX, "tokenizer.json", "config.json")
    assert chosen((*SMALL, "model.safetensors"))[0] == "model.safetensors"


@pytest.mark.parametrize(
    "index",
    [None, [], {}, {"weight_map": []}, {"weight_map": {"w": "gone.safetensors"}}]
    + [
        {"weight_map": {"w": name}}
        for name in ("../x.safetensors", "config.json", "s/y.safetensors")
    ],
)
def test_an_index_that_names_no_shards_is_refused(index: object) -> None:
    with pytest.raises(HubError, match="index"):
        chosen((*SMALL, INDEX, "s/y.safetensors"), index=index)


def test_a_model_without_its_tokenizer_is_refused_before_its_weights() -> None:
    with pytest.raises(HubError, match=r"no tokenizer\.json"):
        chosen(("config.json", "model.safetensors"))


def test_quantizations_are_read_from_names() -> None:
    assert labels(
        "Qwen3-0.6B-Q4_K_M.gguf", "a.q8_0.gguf", "m-IQ3_XXS.gguf", "x-UD-Q4_K_XL.gguf"
    ) == [
        "IQ3_XXS",
        "Q4_K_M",
        "Q8_0",
        "UD-Q4_K_XL",
    ]
    assert labels("Qwen3.gguf", "m-bf16.gguf") == ["BF16", "Qwen3.gguf"]
    # Two models of one quantization are told apart by their files.
    assert labels("a-Q4_0.gguf", "b-Q4_0.gguf") == ["a-Q4_0.gguf", "b-Q4_0.gguf"]


def test_parts_of_a_model_belong_together() -> None:
    parts = [f"Q8_0/m-Q8_0-0000{at}-of-00002.gguf" for at in (1, 2)]
    names = (*parts, "m-Q4_0.gguf", "mmproj-m-F16.gguf", "imatrix.gguf")
    found = choose(names, parse_reference("a/b:Q8_0"), bytes)
    assert (found.names, found.served) == (tuple(parts), parts[0])
    with pytest.raises(HubError, match="1 parts of Q8_0 are missing"):
        choose(parts[:1], parse_reference("a/b"), bytes)


def test_a_file_can_be_named() -> None:
    names = ("a-Q4_0.gguf", "b-Q4_0.gguf")
    for part in ("b-Q4_0.gguf", "b-Q4_0"):
        assert chosen(names, f"x/y:{part}") == ("b-Q4_0.gguf",)
    with pytest.raises(HubError, match=r"has no GGUF model 'Q8_0'; it has a-Q4_0.gguf"):
        chosen(names, "x/y:Q8_0")


def test_included_weights_come_with_what_describes_them() -> None:
    names = (*SMALL, "model.safetensors", "m-Q8_0.gguf", "sub/x.json")
    assert include(names, ["model.*"], "a/b").names == (
        "model.safetensors",
        "tokenizer.json",
        "config.json",
    )
    assert include(names, ["*Q8*", "sub/*"], "a/b").names == ("m-Q8_0.gguf", "sub/x.json")


@pytest.mark.parametrize(
    "name", ["model.py", "a.bin", "x.safetensors.py", "tokenizer.model.sh", "a"]
)
def test_names_that_are_never_fetched(name: str) -> None:
    assert not is_allowed(name)


def test_a_listing_without_an_end_is_refused() -> None:
    with pytest.raises(HubError):
        check_names(f"{at}.json" for at in range(200_000))
    with pytest.raises(HubError):
        check_names(["a.json", "a.json"])
