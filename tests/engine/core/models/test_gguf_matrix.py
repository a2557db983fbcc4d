"""Every type of GGUF weights in every native architecture; writes the table of docs/gguf.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.core.models.gguf_matrix import ARCHITECTURES, TYPES, served

PAGE = Path(__file__).parents[4] / "docs" / "gguf.md"
MARK, END = "<!-- types -->\n", "<!-- end of types -->\n"
DIAGONAL = [(kind, list(ARCHITECTURES)[i % len(ARCHITECTURES)]) for i, kind in enumerate(TYPES)]
LAYERS = {"phi3": 30, "glm4": 12}
"""Of models whose matrices have every type, where it is more than 6."""


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def written(equal: set[tuple[str, str]]) -> str:
    """The table: a row for each type, a column for each architecture."""
    lines = [
        f"| type | {' | '.join(f'`{name}`' for name in ARCHITECTURES)} |",
        "| --- |" + " --- |" * len(ARCHITECTURES),
    ]
    for kind in TYPES:
        cells = ("equal" if (kind, name) in equal else "different" for name in ARCHITECTURES)
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    return "\n".join(["", *lines, "", ""])


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_file_of_all_types_gives_the_tokens_of_transformers(name: str, tmp_path: Path) -> None:
    answer = served(tmp_path, name, TYPES, num_layers=LAYERS.get(name, 6))
    assert answer.types == set(TYPES)
    assert answer.tokens == answer.likeliest


@pytest.mark.parametrize(("kind", "name"), DIAGONAL)
def test_a_file_of_one_type_gives_the_tokens_of_transformers(
    kind: str, name: str, tmp_path: Path
) -> None:
    answer = served(tmp_path, name, [kind])
    assert answer.types == {kind}
    assert answer.tokens == answer.likeliest


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_type_gives_the_tokens_of_transformers_in_every_architecture(tmp_path: Path) -> None:
    equal, pairs = set(), [(kind, name) for kind in TYPES for name in ARCHITECTURES]
    for kind, name in pairs:
        (folder := tmp_path / f"{kind}-{name}").mkdir()
        answer = served(folder, name, [kind])
        assert answer.types == {kind}
        if answer.tokens == answer.likeliest:
            equal.add((kind, name))
    assert [pair for pair in pairs if pair not in equal] == []
    head, mark, rest = PAGE.read_text().partition(MARK)
    _, end, tail = rest.partition(END)
    PAGE.write_text(head + mark + written(equal) + end + tail)


def test_the_table_has_every_type_and_architecture() -> None:
    table = PAGE.read_text().partition(MARK)[2].partition(END)[0]
    assert table == written({(kind, name) for kind in TYPES for name in ARCHITECTURES})
