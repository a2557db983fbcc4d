"""Calls of plugin code in threads of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def start_call(
    name: str, call: Callable[[], T], as_exception: Callable[[BaseException], Exception]
) -> Future[T]:
    """Call a function in a thread of its own.

    A thread cannot be stopped: one that does not return is abandoned, and does not block the exit
    of the process.

    Args:
        name: name of the thread.
        call: the function.
        as_exception: converts what is not for the caller: ``SystemExit`` and the like, and
            ``StopIteration``, which a coroutine cannot raise.
    """
    answer: Future[T] = Future()
    answer.set_running_or_notify_cancel()  # the caller cannot cancel it

    def work() -> None:
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001 - raised again in the caller
            is_usual = isinstance(error, Exception) and not isinstance(error, StopIteration)
            answer.set_exception(error if is_usual else as_exception(error))
        else:
            answer.set_result(result)

    threading.Thread(target=work, name=name, daemon=True).start()
    return answer
