"""Run a call in a daemon thread, so that the caller can stop waiting for it: a call into a dead mount cannot be ended."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as StillRunning  # not the built-in one before Python 3.11
from typing import TypeVar

__all__ = ["StillRunning", "aside"]

T = TypeVar("T")


def aside(call: Callable[[], T]) -> Future[T]:
    """Start a call. `result(seconds)` returns or raises its outcome, or raises StillRunning."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as failure:  # raised again by `result`
            future.set_exception(failure)

    threading.Thread(target=run, name="aside", daemon=True).start()
    return future
