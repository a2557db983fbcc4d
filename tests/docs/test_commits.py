"""Commit-msg hook: enforces the rules of CONTRIBUTING."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.docs.project import ROOT, document

HOOK = ROOT / "etc/hooks/commit-msg"
BODY = "\n\nGathering pages anew took 40 % of a step.\n"


def answer(message: str, folder: Path) -> str:
    """What the hook says; empty if it accepts the message."""
    file = folder / "COMMIT_EDITMSG"
    file.write_text(message, "utf-8")
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        [HOOK, file], capture_output=True, text=True, check=False, env=environment
    )
    assert bool(done.returncode) == bool(done.stderr)
    return done.stderr


@pytest.mark.parametrize(
    "message",
    [
        f"engine: keep decoding contexts dense{BODY}",
        f"docs, tests: name decisions by what they decide{BODY}",
        f"kv_codec.int8: process rows in one launch{BODY}",
        f"http: seed the parser{BODY}# On branch main\n",
        f"http: {'x' * 66}{BODY}",
        "http: write “…” as it is\n\nWhy.\n\nSigned-off-by: A. Writer <a@example.org>\n",
        f"docs: cut it\n\nWhy.\n# {'-' * 24} >8 {'-' * 24}\n+added\n",
        "Merge branch 'main' into topic\n",
        'Revert "engine: keep decoding contexts dense"\n',
        "fixup! engine: keep decoding contexts dense\n",
    ],
)
def test_good_messages_pass(message: str, tmp_path: Path) -> None:
    assert answer(message, tmp_path) == ""


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (f"keep decoding contexts dense{BODY}", "begin with the area"),
        (f"Engine: keep decoding contexts dense{BODY}", "begin with the area"),
        (f"engine:keep decoding contexts dense{BODY}", "begin with the area"),
        (f"http: {'x' * 67}{BODY}", "more than 72 characters"),
        (f"http: write it.{BODY}", "no full stop"),
        (f"http: added a parser{BODY}", "'added' is not an imperative"),
        (f"http: adding a parser{BODY}", "'adding' is not an imperative"),
        (f"http: adds a parser{BODY}", "'adds' is not an imperative"),
        (f"http: a parser of headers{BODY}", "'a' is not an imperative"),
        (f"http: what a parser reads{BODY}", "'what' is not an imperative"),
        ("http: write it\n", "the body is empty"),
        ("http: write it\n\n# Please enter the commit message.\n", "the body is empty"),
        ("http: write it\n\nSigned-off-by: A. Writer <a@example.org>\n", "the body is empty"),
        ("http: write it\nbecause of this\n", "leave a blank line"),
        ("\n", "begin with the area"),
    ],
)
def test_bad_messages_are_refused_with_a_reason(message: str, why: str, tmp_path: Path) -> None:
    assert why in answer(message, tmp_path)


def test_the_example_of_contributing_passes(tmp_path: Path) -> None:
    section = document("CONTRIBUTING.md").path.read_text("utf-8").partition("## Commits")[2]
    example = re.findall(r"^```text\n(.*?)^```", section, re.MULTILINE | re.DOTALL)[0]
    assert answer(example, tmp_path) == ""


def test_make_install_points_git_at_the_hook() -> None:
    rule = (ROOT / "Makefile").read_text("utf-8").partition("\ninstall:")[2].partition("\n\n")[0]
    assert f"git config core.hooksPath {HOOK.parent.relative_to(ROOT)}" in rule
    assert "test ! -e .git ||" in rule
    assert os.access(HOOK, os.X_OK)
