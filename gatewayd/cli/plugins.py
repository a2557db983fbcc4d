"""``gatewayd plugin``: list, create, test and check plugins."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from gatewayd.cli.common import (
    FAILURE,
    AsJson,
    ConfigFile,
    console,
    fail,
    load_config,
    print_json,
    whole,
)

if TYPE_CHECKING:
    from gatewayd.cli.authoring.health import PluginHealth
    from gatewayd.cli.authoring.testing import PluginTestResult

app = typer.Typer(
    invoke_without_command=True,
    add_completion=False,
    help="List, create, test and check plugins. Without a subcommand, list them.",
)
_STYLES = {
    "enabled": "green",
    "passed": "green",
    "ok": "green",
    "warning": "yellow",
    "failure": "red",
    "skipped": "yellow",
    "unknown": "yellow",
    "failed": "red",
    "conflict": "red",
}


@app.callback()
def plugin(context: typer.Context, config: ConfigFile = None, as_json: AsJson = False) -> None:
    """List plugins unless a subcommand is given."""
    if context.invoked_subcommand is None:
        show(config, as_json)


@app.command("list")
def show(config: ConfigFile = None, as_json: AsJson = False) -> None:
    """List strategies and plugins; only configured ones are imported."""
    from gatewayd.plugins.loaded import report

    rows = report(load_config(config).config)
    if as_json:
        print_json([asdict(row) | {"enabled": row.state == "enabled"} for row in rows])
        return
    kinds, names = [row.kind for row in rows], [row.name for row in rows]
    columns = (whole("kind", kinds), whole("name", names), "state", "from", "")
    table = Table(*columns, box=None, pad_edge=False)
    for row in rows:
        state = f"[{_STYLES.get(row.state, 'dim')}]{row.state}[/]"
        origin = f"{row.distribution} {row.version}"
        table.add_row(row.kind, row.name, state, origin, row.reason or row.summary)
    console().print(table)


@app.command()
def new(
    kind: Annotated[
        str, typer.Argument(metavar="KIND", help="Kind of plugin, such as scheduler or observer.")
    ],
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of the plugin in the configuration.")
    ],
    path: Annotated[
        Path, typer.Option("--path", metavar="DIR", help="Folder in which to create the project.")
    ] = Path(),
) -> None:
    """Create the project of a new plugin that passes the conformance tests."""
    from gatewayd.cli.authoring.scaffold import ScaffoldError, parse_kind, write

    try:
        folder = write(parse_kind(kind), name, path)
    except ScaffoldError as error:
        fail(str(error))
    out = Console(highlight=False, soft_wrap=True)
    for file in sorted(each for each in folder.rglob("*") if each.is_file()):
        out.print(f"  {file}", markup=False)
    out.print(f"\ngatewayd plugin test {folder}   [dim]# it passes already[/]")
    out.print(f"pip install --editable {folder}")
    # Padded, so that the notes of both lines are aligned.
    out.print(f"gatewayd plugin doctor{'':<{len(str(folder))}}[dim]# is it found?[/]")


@app.command("test")
def check(
    target: Annotated[
        str,
        typer.Argument(
            metavar="[PATH | KIND.NAME]", help="Plugin project folder, or an installed plugin."
        ),
    ] = ".",
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Run a plugin's own tests and the conformance tests of its kind; exit status 1 on failure."""
    from gatewayd.cli.authoring.testing import CannotTest, find, run
    from gatewayd.config.chosen_strategies import settings_of

    loaded = load_config(config).config
    try:
        found = find(target)
        result = run(found, {e.plugin: settings_of(loaded, e.plugin) for e in found.entries})
    except CannotTest as error:
        fail(str(error))
    if as_json:
        print_json({"ok": result.is_good, **asdict(result)})
    else:
        _print(result)
    if not result.is_good:
        raise typer.Exit(FAILURE)


def _print(result: PluginTestResult) -> None:
    """Print a line per test, grouped, pytest's output of failures, and totals."""
    out = Console(highlight=False, soft_wrap=True)
    out.print(", ".join(result.plugins), markup=False, style="bold")
    for group in dict.fromkeys(test.group for test in result.tests):
        out.print(f"\n{group}", markup=False)
        for each in result.tests:
            if each.group == group:
                out.print(f"  [{_STYLES[each.outcome]}]{each.outcome}[/]  ", end="")
                seconds = f"  {each.seconds:.1f} s" if each.seconds >= 0.1 else ""
                out.print(each.name + seconds, markup=False)
                if each.text:
                    out.print(f"          {each.text}", markup=False)
    if not result.is_good:
        out.print(f"\n{result.output}", markup=False)
    counts = Counter(test.outcome for test in result.tests)
    summary = ", ".join(f"{number} {outcome}" for outcome, number in counts.items())
    out.print(f"\n{summary or 'no tests found'}", markup=False)


@app.command()
def doctor(
    plugins: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KIND.NAME]...", help="Check only these plugins. Default: all installed."
        ),
    ] = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Load every installed plugin in isolation; exit status 1 if one is broken."""
    from gatewayd.cli.authoring.health import check
    from gatewayd.config.chosen_strategies import enabled, settings_of
    from gatewayd_hooks.host.catalog import Catalog
    from gatewayd_hooks.host.errors import NotInstalled
    from gatewayd_hooks.version import SPEC_VERSION

    loaded = load_config(config).config
    catalog = Catalog.installed()
    installed = [entry.plugin for entry in catalog.entries]
    chosen = enabled(loaded)
    for plugin in plugins or ():
        if plugin not in {*installed, *chosen}:
            fail(str(NotInstalled(plugin, installed)))
    settings = {plugin: settings_of(loaded, plugin) for plugin in installed}
    # Each plugin is loaded in its own process, and one that hangs delays the result.
    with Console(stderr=True).status("loading plugins, each for at most a minute"):
        checkups = check(catalog, chosen, settings, only=plugins)
    is_well = all(checkup.state != "failure" for checkup in checkups)
    if as_json:
        rows = [asdict(checkup) | {"state": checkup.state} for checkup in checkups]
        print_json({"ok": is_well, "spec_version": SPEC_VERSION, "plugins": rows})
    else:
        _print_checkups(checkups, SPEC_VERSION)
    if not is_well:
        raise typer.Exit(FAILURE)


def _print_checkups(checkups: list[PluginHealth], spec_version: str) -> None:
    """Print a table of plugins, then each problem with advice."""
    plugins = whole("plugin", [each.plugin for each in checkups])
    table = Table("", plugins, "from", "contract", "import", "", box=None, pad_edge=False)
    for each in checkups:
        took = "" if each.import_ms is None else f"{each.import_ms:.0f} ms"
        table.add_row(
            f"[{_STYLES[each.state]}]{each.state}[/]",
            each.plugin,
            f"{each.distribution} {each.version}".strip() or "not installed",
            each.requires_spec,
            took,
            "enabled" if each.is_enabled else "",
        )
    out = console()
    out.print(table)
    for each in checkups:
        for problem in each.problems:
            out.print(f"\n{each.plugin}: {problem.text}", markup=False, soft_wrap=True)
            out.print(f"  {problem.advice}", markup=False, soft_wrap=True)
    counts = Counter(each.state for each in checkups)
    summary = ", ".join(f"{number} {state}" for state, number in counts.items())
    out.print(f"\ncontract {spec_version}: {summary}")
