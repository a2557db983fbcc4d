"""Words that hide a term of the field: how often each document may still use them.

A reader searches for "eviction", "speculative decoding" or "persistent", and finds nothing where
a text says "given up", "guessing ahead" or "what is kept". Budgets may only shrink, to zero.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from gatewayd.cli import app
from gatewayd.cli.authoring import commands
from gatewayd.cli.lazy import COMMANDS, load
from tests.docs.project import ROOT, document, documents

WORDS = {
    "nobody": "no client, no sequence, none",
    "somebody": "a user, another process",
    "whoever": "the client that, any process that",
    "strangers?": "third-party, untrusted",
    "(?:few|fewer) bits": "quantized, low-bit",
    "(?:give|gives|given|gave|giving) up": "evict, release, free",
    "who computes next": "scheduling",
    "what is kept": "persistent, stored, cached",
    "what is promised": "SLO, goal",
    "guess(?:es|ing|ed)? ahead": "speculative decoding",
    "few places|all places|places in the pool": "tokens, positions, KV slots",
    "places to fill in": "generation, gen()",
    "in (?:its|their|another's) turn": "round-robin",
    "products? of (?:few|fewer) bits": "quantized matmul",
}
"""Patterns, and what the field says."""
PATTERN = re.compile(rf"\b(?:{'|'.join(WORDS)})\b", re.IGNORECASE)
HEADING = re.compile(r"^#+ .*$", re.MULTILINE)
HELP = "help of the command line"

BUDGETS: dict[str, int] = {
    "CHANGELOG.md": 21,
    "docs/adr/0001-source-roots-and-hatchling.md": 2,
    "docs/adr/0004-entry-points-named-kind-and-name.md": 1,
    "docs/adr/0008-fallback-on-strategy-faults.md": 1,
    "docs/adr/0009-hot-swap-and-watchdog.md": 1,
    "docs/adr/0010-lossless-speculative-decoding.md": 2,
    "docs/adr/0011-strategies-open-in-the-background.md": 2,
    "docs/adr/0012-overlapped-scheduling.md": 2,
    "docs/adr/0014-one-store-one-writer.md": 2,
    "docs/adr/0015-grammars-compiled-in-isolation.md": 1,
    "docs/adr/0017-clock-jumps-and-expiry.md": 1,
    "docs/adr/0018-graceful-drain-and-socket-ownership.md": 3,
    "docs/adr/0019-budget-reservation-and-api-keys.md": 3,
    "docs/adr/0020-grammar-memory-and-check-queue.md": 1,
    "docs/adr/0021-preemption-and-deadline-admission.md": 2,
    "docs/adr/0022-on-demand-engine-inspection.md": 2,
    "docs/adr/0023-held-requests-and-operator-audit.md": 4,
    "docs/adr/0024-console-of-whole-snapshots.md": 2,
    "docs/adr/0025-kv-cache-quotas.md": 5,
    "docs/adr/0026-console-plugins-are-data.md": 3,
    "docs/adr/0027-runtime-changes-and-the-configuration-file.md": 2,
    "docs/adr/0029-prefill-isolation-in-the-fair-scheduler.md": 4,
    "docs/adr/0032-quantized-matmul-on-gpus.md": 2,
    "docs/adr/0033-kv-of-sparse-attention-is-private.md": 2,
    "docs/adr/0034-packed-int4-weights-on-cpus.md": 1,
    "docs/adr/0035-batch-invariant-quantized-models.md": 3,
    "docs/adr/0036-quantization-driver-and-methods.md": 1,
    "docs/adr/0038-compacted-prefixes-in-kv-pages.md": 1,
    "docs/adr/0039-kv-scales-folded-into-weights.md": 2,
    "docs/adr/0040-matmul-kernels-from-plugins.md": 2,
    "docs/adr/0041-calibration-of-experts.md": 1,
}
"""Uses that are left, by document; others have none. Lower a number with what you repair."""


def helps() -> Iterator[str]:
    """Every help of the command line."""
    yield app.info.help or ""
    yield from (each.summary for each in COMMANDS.values())
    for name in commands.names():
        yield from _helps(load(name))


def _helps(command: Any) -> Iterator[str]:
    yield command.help or ""
    yield from (each.help or "" for each in command.params)
    for sub in getattr(command, "commands", {}).values():
        yield from _helps(sub)


def texts() -> dict[str, str]:
    """What is held to the list, by its name."""
    pages = {
        each.name: each.path.read_text("utf-8")
        for each in documents()
        if each.name == "README.md" or each.name.startswith("docs/")
    }
    head, mark, rest = pages["docs/cli.md"].partition("<!-- commands -->\n")
    pages["docs/cli.md"] = head + rest.partition("<!-- end -->")[2]
    assert mark
    unreleased = document("CHANGELOG.md").path.read_text("utf-8").split("\n## [")[1]
    assert unreleased.startswith("Unreleased")
    return pages | {
        "CHANGELOG.md": unreleased,
        "etc/gatewayd.toml": (ROOT / "etc/gatewayd.toml").read_text("utf-8"),
        HELP: "\n".join(helps()),
    }


TEXTS = texts()


def found(text: str) -> list[str]:
    """Uses, also where a line ends within one."""
    return PATTERN.findall(" ".join(text.split()))


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_words_of_the_list_become_fewer(name: str) -> None:
    uses = found(TEXTS[name])
    budget = BUDGETS.get(name, 0)
    assert len(uses) <= budget, f"say what the field says: {sorted(set(uses))}"
    assert len(uses) == budget, f"well done: lower the budget of {name} to {len(uses)}"


def test_every_budget_is_of_a_document() -> None:
    assert BUDGETS.keys() <= TEXTS.keys()
    assert all(budget > 0 for budget in BUDGETS.values())


@pytest.mark.parametrize("name", ["README.md", "docs/README.md", "docs/features.md", "docs/cli.md"])
def test_what_is_read_first_has_none(name: str) -> None:
    assert name not in BUDGETS


def test_no_heading_has_one() -> None:
    pages = [each for each in documents() if each.name in TEXTS]
    headings = [heading for page in pages for heading in HEADING.findall(page.prose)]
    assert len(headings) > 300
    assert [h for h in headings if found(h)] == []


@pytest.mark.parametrize(
    ("text", "uses"),
    [
        ("Pages that nobody\nholds are given\nup.", 2),
        ("Cached pages without references are evicted.", 0),
        ("Whoever asks, and strangers too", 2),
        ("give upper bounds", 0),
    ],
)
def test_a_use_is_told_from_other_text(text: str, uses: int) -> None:
    assert len(found(text)) == uses
