"""Forked children that check something, with a deadline."""

from __future__ import annotations

import os
import signal
import time
import traceback
from collections.abc import Callable

_SECONDS = 30


class Child:
    """A forked process that calls a function; it fails if the function does.

    Args:
        check: called in the child.
    """

    def __init__(self, check: Callable[[], None]) -> None:
        self._pid = os.fork()
        if self._pid:
            return
        status = 1
        try:
            check()
            status = 0
        except BaseException:  # noqa: BLE001 - no exception may leave the child
            traceback.print_exc()
        finally:
            os._exit(status)

    def succeeded(self) -> bool:
        """Wait for its end; it is killed at the deadline."""
        deadline = time.monotonic() + _SECONDS
        while time.monotonic() < deadline:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status) == 0
            time.sleep(0.001)
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        return False
