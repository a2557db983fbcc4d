"""References to models of the Hub."""

from __future__ import annotations

import pytest

from gatewayd.hub.errors import HubError
from gatewayd.hub.reference import HubReference, is_reference, parse_reference


@pytest.mark.parametrize(
    ("text", "repo", "revision", "part"),
    [
        ("hf:Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B", "main", ""),
        ("Qwen/Qwen3-0.6B@v1.0", "Qwen/Qwen3-0.6B", "v1.0", ""),
        ("a/b@refs/pr/3:Q4_K_M", "a/b", "refs/pr/3", "Q4_K_M"),
        ("hf:a/b:sub/c-Q8_0.gguf", "a/b", "main", "sub/c-Q8_0.gguf"),
        ("hf.co/a/b:Q4_K_M", "a/b", "main", "Q4_K_M"),
        ("https://huggingface.co/a/b", "a/b", "main", ""),
    ],
)
def test_what_is_named(text: str, repo: str, revision: str, part: str) -> None:
    reference = parse_reference(text)
    assert reference == HubReference(repo, revision, part)
    assert parse_reference(str(reference)) == reference


def test_the_served_name_has_no_revision() -> None:
    assert parse_reference("hf:a/b@v1:Q8_0").served_name == "a/b:Q8_0"


@pytest.mark.parametrize(
    "text",
    [
        *("", "hf:", "llama3", "a/b/c", "/etc/passwd", "../b", "a/..", "a/b@", "a/b:", "a--b/c"),
        *("a/b@../c", "a/b@/c", "a/b@c/../d", "a/b@x.lock", "a/b@-c", "a /b", "a/b\n", "-a/b"),
        *("a/b:\x1b[2J", "a/" + "b" * 99, "a/b:" + "c" * 201, "https://example.com/a/b"),
    ],
)
def test_what_names_none_is_refused_in_printable_words(text: str) -> None:
    with pytest.raises(HubError, match="names no model of the Hub") as caught:
        parse_reference(text)
    assert str(caught.value).isprintable()


def test_a_path_is_no_reference() -> None:
    assert is_reference("hf:a/b")
    assert not is_reference("/srv/hf:a/b")
