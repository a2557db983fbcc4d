"""``gatewayd quality``: a real measuring process and its report."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from gatewayd.cli.quality.command import _is_quantized
from gatewayd.cli.quality.report import Named, markdown, most_kl, notes, reasons, table, values
from gatewayd.cli.quality.texts import samples
from gatewayd_engine.model import embedded
from gatewayd_engine.offline.quality.job import QualityFigures, SchemeMeasured, SchemeUnusable

RESULTS: Named = [
    ("as stored", SchemeMeasured(0, 48 << 20, 6144.0, 300.4, {"text": QualityFigures(1000, 2.5)})),
    (
        "int8",
        SchemeMeasured(
            1,
            16 << 20,
            6144.0,
            612.0,
            {
                "chats": QualityFigures(1000, 1.5, 1.2, 0.995, 0.00172, 0.031),
                "code": QualityFigures(900, 1.01, 1.0, 1.0, 0.0005, 0.002),
            },
        ),
    ),
    ("x", SchemeUnusable(2, "no such | thing")),
]


def run(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gatewayd", "quality", *options],
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_schemes_are_measured_and_one_that_cannot_be_ends_with_1(tmp_path: Path) -> None:
    file, folder = tmp_path / "gatewayd.toml", tmp_path / "mine"
    # Left out, or nothing could be measured: it selects no places.
    file.write_text('[kv_compression]\nstrategy = "matching"\n')
    folder.mkdir()
    for source in embedded.folder("nano").iterdir():
        (folder / source.name).symlink_to(source)
    options = ("--quantizer", "gguf", "--tokens", "120", "--json", "--config", str(file))
    done = run(str(folder), *options)
    assert done.returncode == 1
    document: dict[str, Any] = json.loads(done.stdout)
    assert document["model"] == str(folder)
    stored, broken = document["schemes"]
    assert stored["scheme"] == "as stored"
    assert stored["kinds"].keys() == {"chats", "code"}
    assert stored["kinds"]["chats"]["perplexity"] > 1
    assert stored["kinds"]["code"]["kl_mean"] == 0
    assert broken["scheme"] == "gguf"
    left_out, texts, reason = done.stderr.splitlines()
    assert left_out.startswith("[kv_compression] matching is not measured")
    assert texts.startswith("the bundled texts are chats about Python's standard library")
    assert reason == f"gatewayd: some schemes cannot be used: gguf: {broken['error']}"


def test_of_the_embedded_model_nothing_is_said_and_the_limit_ends_with_1() -> None:
    done = run("nano", "--quantizer", "int4", "--tokens", "120", "--most-kl", "0.0001")
    assert done.returncode == 1
    assert "int4" in done.stdout
    (line,) = done.stderr.splitlines()
    assert line.startswith("gatewayd: --most-kl: the largest mean divergence is 0.")


@pytest.mark.parametrize("option", ["--quantizer", "--kv-codec", "--kv-compression"])
def test_names_that_are_not_installed_are_told_before_anything_is_measured(option: str) -> None:
    done = run("nano", option, "none,zzz")
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"gatewayd: {option}: zzz is not installed; there are ")
    first = "int8" if option != "--kv-compression" else "heavy"
    assert first in line.removeprefix(f"gatewayd: {option}: ")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("/nowhere",), "cannot read /nowhere/config.json"),
        (("nano", "--text", "/nowhere.txt"), "--text: cannot read /nowhere.txt"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(options: tuple[str, ...], sentence: str) -> None:
    done = run(*options)
    assert done.returncode in (1, 78)
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_a_quantized_checkpoint_is_no_reference(tmp_path: Path) -> None:
    def write(**values: Any) -> None:
        (tmp_path / "config.json").write_text(json.dumps(values))

    write(hidden_size=1)
    assert not _is_quantized(tmp_path)
    (tmp_path / "model.gguf").touch()
    assert _is_quantized(tmp_path)
    (tmp_path / "model.safetensors").touch()
    assert not _is_quantized(tmp_path)
    write(quantization_config=None)
    assert not _is_quantized(tmp_path)
    for name in ("quantization_config", "compression_config"):
        write(**{name: {"quant_method": "awq"}})
        assert _is_quantized(tmp_path)


def test_each_kind_has_its_part_of_the_tokens() -> None:
    found = samples(embedded.folder(), None, 3000, 400)
    of = {kind: [s.ids for s in found if s.kind == kind] for kind in ("chats", "code")}
    for pieces in of.values():
        assert 1490 < sum(map(len, pieces)) <= 1500
        assert max(map(len, pieces)) <= 400


def test_a_file_is_cut_to_pieces_of_the_context(tmp_path: Path) -> None:
    file = tmp_path / "text"
    file.write_text("def f(x): return x\n" * 200)
    found = samples(embedded.folder(), file, 30_000, 256)
    assert {len(one.ids) for one in found[:-1]} == {256}
    assert {one.kind for one in found} == {"text"}
    with pytest.raises(ValueError, match="no text of 2 tokens"):
        samples(embedded.folder(), _empty(tmp_path), 100, 256)


@pytest.mark.timeout(120)
def test_no_more_of_a_file_is_looked_at_than_is_read(tmp_path: Path) -> None:
    """All of this one would take minutes and gigabytes; of one without texts nothing is."""
    file, line = tmp_path / "text", "def f(x): return x\n"
    file.write_text(line * (100_000_000 // len(line)))
    assert sum(len(one.ids) for one in samples(embedded.folder(), file, 500, 256)) == 500
    (tmp_path / "none.jsonl").touch()
    with pytest.raises(ValueError, match="there is no text of 2 tokens"):
        samples(embedded.folder(), tmp_path / "none.jsonl", 500, 256)


def test_a_compression_is_measured_behind_long_prompts() -> None:
    set_ = ("--set", "kv_compression.matching.ratio=8")
    done = run("nano", "--kv-compression", "matching", "--tokens", "320", *set_, "--json")
    assert done.returncode == 0, done.stderr
    plain, matched = json.loads(done.stdout)["schemes"]
    assert (plain["scheme"], matched["scheme"]) == ("as stored", "as stored, matching")
    for one in (plain, matched):
        assert {kind["tokens"] for kind in one["kinds"].values()} == {160 - 120 - 1}
    assert plain["kv_read"] is None
    assert matched["kv_read"] < 1
    # Of 48 keys 16 are left, and a page of biases: 9 pages of 10.
    assert matched["kv_bytes_per_token"] == pytest.approx(0.9 * plain["kv_bytes_per_token"])
    note = "at_least is 1024 by default, more than these prompts have: it was 120"
    assert done.stderr.splitlines() == [f"as stored, matching: {note}"]


def test_packed_texts_are_long_and_have_a_prompt(tmp_path: Path) -> None:
    found = samples(embedded.folder(), None, 4200, 2048, packed=True)
    assert [(one.kind, len(one.ids), one.prompt) for one in found] == [
        (kind, 1024, 768) for kind in ("chats", "chats", "code", "code")
    ]
    # They are what the texts say, one behind the other.
    whole = samples(embedded.folder(), None, 1100, 2048)
    chats = [i for one in whole if one.kind == "chats" for i in one.ids]
    assert found[0].ids[:300] == chats[:300]
    few = samples(embedded.folder(), None, 300, 2048, packed=True)
    assert [(len(one.ids), one.prompt) for one in few] == [(150, 112)] * 2
    with pytest.raises(ValueError, match="no text of 16 tokens"):
        samples(embedded.folder(), None, 30, 2048, packed=True)
    file = tmp_path / "text"
    file.write_text("def f(x): return x\n" * 5)
    (one,) = samples(embedded.folder(), file, 4000, 2048, packed=True)
    assert one.prompt == len(one.ids) * 3 // 4 > 10


def test_the_table_says_what_is_read_where_a_compression_was_measured() -> None:
    figures = {"text": QualityFigures(100, 2.5)}
    few = SchemeMeasured(2, 48 << 20, 3686.0, 200.0, figures, 0.604, "a note")
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(table([*RESULTS, ("few", few)]))
    lines = [line.split() for line in console.export_text().splitlines()]
    assert lines[1][:6] == ["as", "stored", "48.0", "6,144", "100.0%", "300"]
    assert lines[5][:5] == ["few", "48.0", "3,686", "60.4%", "200"]
    assert notes([*RESULTS, ("few", few)]) == ["few: a note"]
    counts = {
        line.replace("\\|", "").count("|")
        for line in markdown([*RESULTS, ("few", few)]).split("\n")
    }
    assert counts == {13}


def test_the_table_has_a_row_for_each_kind_and_each_failure() -> None:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(table(RESULTS))
    lines = [line.split() for line in console.export_text().splitlines()]
    assert lines[1] == ["as", "stored", "48.0", "6,144", "300", "text", "1,000", "2.5000"]
    assert lines[2][:5] == ["int8", "16.0", "6,144", "612", "chats"]
    assert lines[2][5:] == ["1,000", "1.5000", "+25.00%", "99.50%", "0.00172", "0.03100"]
    assert lines[3][0] == "code"
    assert lines[4] == ["x", "cannot", "be", "used"]
    assert reasons(RESULTS) == ["x: no such | thing"]


def test_markdown_has_as_many_cells_in_each_line() -> None:
    lines = markdown(RESULTS).splitlines()
    assert {line.replace("\\|", "").count("|") for line in lines} == {12}
    assert "| x | cannot be used: no such \\| thing |" in lines[-1]


def test_programs_get_all_numbers() -> None:
    stored, int8, broken = values(RESULTS)
    assert stored["kinds"]["text"]["kl_mean"] is None
    assert int8["weight_bytes"] == 16 << 20
    assert int8["kinds"]["chats"]["kl_p99"] == 0.031
    assert broken == {"scheme": "x", "error": "no such | thing"}
    assert most_kl(RESULTS) == 0.00172


def _empty(folder: Path) -> Path:
    file = folder / "empty"
    file.write_text("")
    return file
