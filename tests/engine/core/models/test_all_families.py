"""Every family of causal language models of transformers; writes the table of docs/families.md."""

from __future__ import annotations

import gc
import re
import tempfile
from pathlib import Path

import pytest

from gatewayd_engine.model.json_fields import SpecError
from gatewayd_engine.model.loading.safetensors_headers import LoadError
from gatewayd_engine.process.config import EngineConfigError
from tests.engine.core.models.family_run import MANY, outcome_of
from tests.engine.core.models.tiny_families import NoTinyModel, families, write_tiny

PAGE = Path(__file__).parents[4] / "docs" / "families.md"
LEAST_SERVED = 90
_MARK = "<!-- families -->\n"
_NATIVE_REFUSAL = re.compile(r"^.*?is not supported; supported are [^;]*; ")
_OWN_WORDS = re.compile(r"^\w+ is not served by the model backend transformers: ")


def row_of(family: str, folder: Path) -> tuple[str, str, str]:
    """Backend, result and reason of a family."""
    untested = ""
    try:
        write_tiny(folder, family)
    except NoTinyModel as error:
        untested = f"no tiny model: {error}"
    if not (folder / "config.json").exists():
        return "", "not tested", untested
    try:
        found = outcome_of(folder, family, MANY)
    except (SpecError, EngineConfigError) as error:
        # Before any weights are read.
        return "", "refused", _OWN_WORDS.sub("", _NATIVE_REFUSAL.sub("", str(error)))
    except LoadError:
        return "", "not tested", untested
    assert found.is_equal, family
    return found.backend, "equal", ""


def written(rows: dict[str, tuple[str, str, str]]) -> str:
    """The table, and how many of each result there are."""
    results = [row[1] for row in rows.values()]
    counts = ", ".join(
        f"{results.count(each)} {each}" for each in ("equal", "refused", "not tested")
    )
    lines = ["", f"{len(rows)} families: {counts}.", "", "| family | backend | tokens | reason |"]
    lines += ["| --- | --- | --- | --- |"]
    for family, (backend, result, reason) in sorted(rows.items()):
        cell = reason.replace("|", "\\|").replace("`", "")
        lines.append(f"| `{family}` | {backend} | {result} | {cell} |".replace("  ", " "))
    return "\n".join(lines) + "\n"


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.filterwarnings("ignore")
def test_every_family_answers_as_transformers_or_is_refused() -> None:
    rows, unequal = {}, []
    for family in sorted(families()):
        with tempfile.TemporaryDirectory() as folder:
            try:
                rows[family] = row_of(family, Path(folder))
            except AssertionError:
                unequal.append(family)
        gc.collect()
    assert unequal == []
    served = [family for family, row in rows.items() if row[1] == "equal"]
    assert len(served) >= LEAST_SERVED
    head, mark, _ = PAGE.read_text().partition(_MARK)
    PAGE.write_text(head + mark + written(rows))


def test_the_table_has_every_family_of_the_installed_library() -> None:
    rows = re.findall(r"^\| `(.+?)` \|", PAGE.read_text(), re.MULTILINE)
    assert rows == sorted(families())
    assert PAGE.read_text().count("| equal |") >= LEAST_SERVED
