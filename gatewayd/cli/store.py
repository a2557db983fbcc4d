"""``gatewayd store``: show, upgrade and back up the store."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Annotated

import typer
from sqlalchemy.exc import SQLAlchemyError

from gatewayd.cli.common import AsJson, ConfigFile, fail, load_config, print_json

_BESIDE = ("secret", "audit.head")
"""Files next to the database; see ``tenants.tamper_evidence``."""

app = typer.Typer(
    no_args_is_help=True, help="Show, upgrade or back up the store of files, batches and responses."
)


@app.command()
def current(config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Show the path, schema and size of the store."""
    from gatewayd.store.database import connect
    from gatewayd.store.schema import revision_of
    from gatewayd_migrations import HEAD

    folder = folder_of(config)
    file = folder / "gatewayd.db"
    revision = None
    if file.exists():
        engine = connect(file)
        try:
            # A read-only transaction does not wait for the daemon's writer.
            with engine.execution_options(readonly=True).connect() as connection:
                revision = revision_of(connection)
        except Exception as error:  # noqa: BLE001 - report any error in a sentence
            fail(f"the store {file} cannot be read: {error}")
        finally:
            engine.dispose()
    sizes = [entry.stat().st_size for entry in folder.rglob("*") if entry.is_file()]
    found = {
        "folder": str(folder),
        "schema": revision,
        "newest_schema": HEAD,
        "bytes": sum(sizes),
    }
    if as_json:
        print_json(found)
        return
    for name, value in found.items():
        typer.echo(f"{name}: {'none' if value is None else value}")


@app.command()
def upgrade(config: ConfigFile = None) -> None:
    """Upgrade the store to the schema of this gatewayd, as starting the daemon would."""
    from gatewayd.store.database import connect
    from gatewayd.store.errors import StoreError
    from gatewayd.store.location import lock_store
    from gatewayd.store.schema import upgrade_schema
    from gatewayd_migrations import HEAD

    try:
        store = lock_store(str(folder_of(config)))
        try:
            engine = connect(store.database)
            upgrade_schema(engine, store.database)
            engine.dispose()
        finally:
            store.close()
    except StoreError as error:
        fail(str(error))
    typer.echo(f"{store.database} has the schema {HEAD}")


@app.command()
def changes(
    config: ConfigFile = None,
    as_json: AsJson = False,
    forget: Annotated[
        bool,
        typer.Option(
            "--forget",
            help="Discard the changes, so that the configuration "
            "file applies; the daemon must be stopped.",
        ),
    ] = False,
) -> None:
    """Show runtime changes of strategies, limits and SLOs that operators have made.

    The latest change of each survives restarts until the same key of the configuration file is
    edited.
    """
    import time

    from gatewayd.admin.overrides import records
    from gatewayd.store.database import connect
    from gatewayd.store.errors import StoreError
    from gatewayd.store.location import lock_store

    folder = folder_of(config)
    if not (folder / "gatewayd.db").exists():
        fail(f"there is no store in {folder}")
    try:
        if forget:
            # A running daemon holds the overrides in memory and would not notice new rows.
            store = lock_store(str(folder))
            try:
                engine = connect(store.database)
                with engine.begin() as connection:
                    for change in records.latest(connection):
                        # A row with the file's own value is no override; the history stays.
                        new = change._replace(at=int(time.time()), actor="--forget")
                        records.add(connection, new._replace(value=change.base))
                engine.dispose()
            finally:
                store.close()
        engine = connect(folder / "gatewayd.db")
        with engine.execution_options(readonly=True).connect() as connection:
            found = records.history(connection)
        engine.dispose()
    except (StoreError, SQLAlchemyError) as error:
        fail(f"the store {folder} cannot be used: {error}")
    if as_json:
        print_json([change._asdict() for change in found])
        return
    for change in found:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(change.at))
        kept = "reset to the file" if change.value == change.base else json.dumps(change.value)
        typer.echo(f"{at}  [{change.section}] by {change.actor}: {kept}")


@app.command()
def backup(
    to: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Destination folder; must not exist.")
    ],
    config: ConfigFile = None,
) -> None:
    """Back up the store while a daemon uses it.

    The audit is copied first, then the database, then the files: objects created meanwhile are not
    in the copy, and objects deleted meanwhile have no content in it. The copy contains the secret
    without which no API key is valid: guard it like the store itself. The folder is called
    FOLDER.part until the copy is complete.
    """
    from gatewayd.store.atomic_files import sync_folder

    folder = folder_of(config)
    if not (folder / "gatewayd.db").exists():
        fail(f"there is no store in {folder}")
    part = to.with_name(f"{to.name}.part")
    if to.exists():
        fail(f"the store cannot be copied: {to} exists")
    try:
        part.mkdir(mode=0o700, parents=True)
    except OSError as error:
        fail(f"the store cannot be copied: {error}")
    try:
        # Before the database: a head newer than the copied audit would report missing rows.
        for name in _BESIDE:
            with suppress(FileNotFoundError):
                shutil.copy2(folder / name, part / name)
        with (
            closing(sqlite3.connect(folder / "gatewayd.db")) as source,
            closing(sqlite3.connect(part / "gatewayd.db")) as copy,
        ):
            source.backup(copy)
            # From the copy: files that were added after it have no row there.
            names = [name for (name,) in copy.execute("SELECT id FROM files")]
        (part / "files").mkdir(mode=0o700)
        for name in names:
            with suppress(FileNotFoundError):
                shutil.copy2(folder / "files" / name, part / "files" / name)
        part.rename(to)
        sync_folder(to.parent)
    except (OSError, sqlite3.Error) as error:
        # A partial copy could be mistaken for a complete one.
        shutil.rmtree(part, ignore_errors=True)
        fail(f"the store cannot be copied: {error}")
    typer.echo(f"copied {folder} to {to}")


def folder_of(config: Path | None) -> Path:
    """Return the store's folder, or exit with an error if there is none."""
    import os

    from gatewayd.store.location import TEMPORARY, default_folder

    path = load_config(config).config.store.path
    if path == TEMPORARY:
        fail("the store is temporary: [store] path")
    folder = default_folder(os.environ) if path is None else Path(path).expanduser().absolute()
    if folder is None:
        fail("there is no home directory; set [store] path")
    return folder
