"""Concurrent runs with a limit."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

Progress = Callable[[int, int], None]
"""Called with the number of completed runs and their total."""


def run_all(
    works: Sequence[Callable[[], None]],
    concurrency: int,
    progress: Progress | bool,
    end: Callable[[BaseException], None],
) -> None:
    """Run them.

    Args:
        works: none of them raises.
        concurrency: maximum of concurrent runs.
        progress: called after each run.
        end: called when the user interrupts, to stop running ones.

    Raises:
        ValueError: the concurrency is below 1.
    """
    if concurrency < 1:
        raise ValueError(f"concurrency is {concurrency}; at least one must run at a time")
    report = _show if progress is True else progress
    with ThreadPoolExecutor(concurrency, thread_name_prefix="gatewayd-lang-batch") as pool:
        try:
            futures = [pool.submit(work) for work in works]
            for count, future in enumerate(as_completed(futures), 1):
                future.result()
                if report:
                    report(count, len(works))
        except BaseException as error:
            # Leaving the block waits for running works; `end` makes them return.
            pool.shutdown(wait=False, cancel_futures=True)
            end(error)
            raise


def _show(done: int, total: int) -> None:
    print(f"\r{done}/{total}", end="\n" if done == total else "", file=sys.stderr, flush=True)
