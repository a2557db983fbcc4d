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
from collections import Counter
from pathlib import Path

import pytest

from gatewayd.store.database import connect
from gatewayd.store.schema import bring_up

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


_WAIT = tuple(
    str(Path(__file__).parent / name) for name in ("daemon", "packaging", "gatewayd/engines")
)
"""Folders whose tests wait for much of their time: for processes that load, and for clocks."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that wait come first, while the checks of ``.ci/run`` use what they leave.

    Then come those of most tests, so that no worker is left with a long one at the end.
    """
    counts = Counter(item.path for item in items)
    items.sort(key=lambda item: (not str(item.path).startswith(_WAIT), -counts[item.path]))


@pytest.fixture(scope="session")
def fresh_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an empty store of the newest schema: copied, it is ready at once."""
    folder = tmp_path_factory.mktemp("store")
    file = folder / "gatewayd.db"
    engine = connect(file)
    bring_up(engine, file)
    engine.dispose()
    return folder
