"""What all tests need: interrupts that reach the processes they start, and stores of their own."""

import atexit
import functools
import gc
import os
import shutil
import signal
import ssl
import sys
import tempfile
from pathlib import Path

import pytest

from gatewayd.store.database import connect
from gatewayd.store.schema import upgrade_schema
from tests import durations, sizes, warm
from tests.random_cases import bound_cases

bound_cases()
warm.install()

_SECONDS = pytest.StashKey[dict[str, float]]()
_LEFT_OUT = pytest.StashKey[frozenset[str]]()

# Whoever runs the tests in the background may ignore interrupts, and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# No test writes to the home of whoever runs it.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="gatewayd-tests-")
atexit.register(shutil.rmtree, os.environ["XDG_STATE_HOME"], ignore_errors=True)

# Hundreds of processes are started: none compiles again what the one before has compiled.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Each HTTP client reads the certificates of all authorities, 30 ms; no test uses TLS.
ssl.create_default_context = functools.cache(ssl.create_default_context)  # type: ignore[assignment]


# What is imported stays: whoever collects garbage need not look through it, now or later.
gc.disable()


def pytest_collection_finish() -> None:
    """Everything is imported by now."""
    gc.collect()
    gc.freeze()
    gc.enable()


# Extensions look for what was never freed, after pytest has looked for what tests have left.
atexit.register(gc.unfreeze)


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--sizes``: which tests to run, by their durations on record."""
    parser.addoption(
        "--sizes",
        type=sizes.parse,
        default=frozenset(sizes.SIZES),
        help="run tests of these sizes only: small, medium, large, with commas",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Read the record once; where tests are left out, snapshots are unused."""
    seconds = durations.read()
    if config.getoption("sizes") != frozenset(sizes.SIZES):
        config.option.warn_unused_snapshots = True
    config.stash[_SECONDS] = seconds
    config.stash[_LEFT_OUT] = sizes.files_without(config.getoption("sizes"), seconds)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no file without a test of the chosen sizes."""
    chosen: frozenset[str] = config.getoption("sizes")
    name = str(collection_path.relative_to(config.rootpath))
    is_left_out = name in config.stash[_LEFT_OUT] or f"{name}/".startswith(
        sizes.folders_without(chosen)
    )
    return True if is_left_out else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out other sizes, and order files: those that wait come first, then the longest.

    What waits does so while the checks of ``.ci/run`` use the processors, and no worker is left
    with a long file at the end.
    """
    seconds, chosen = config.stash[_SECONDS], config.getoption("sizes")
    left_out = [item for item in items if sizes.size_of(_name(item), seconds) not in chosen]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        excluded = set(left_out)
        items[:] = [item for item in items if item not in excluded]

    def order(item: pytest.Item) -> tuple[bool, float]:
        file = item.nodeid.partition("::")[0]
        return not file.startswith(sizes.WAITING_FOLDERS), -seconds.get(file, 0.0)

    items.sort(key=order)


def _name(item: pytest.Item) -> str:
    """As ``durations`` records a test: without its class."""
    return f"{item.nodeid.partition('::')[0]}::{item.name}"


@pytest.fixture(scope="session")
def fresh_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an empty store of the newest schema: copied, it is ready at once."""
    folder = tmp_path_factory.mktemp("store")
    file = folder / "gatewayd.db"
    engine = connect(file)
    upgrade_schema(engine, file)
    engine.dispose()
    return folder
