"""Run a call in a thread of its own, so that one can stop waiting for it."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Aside(Generic[T]):
    """A call under way. A call into a dead mount cannot be ended, but it can be left behind."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._outcome: list[T] = []
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(call,), name="aside", daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def result(self, seconds: float | None = None) -> T:
        """What the call returned or raised; TimeoutError if it has not come back by then."""
        self._thread.join(seconds)
        if self._failure:
            raise self._failure
        if not self._outcome:
            raise TimeoutError
        return self._outcome[0]

    def _run(self, call: Callable[[], T]) -> None:
        try:
            self._outcome.append(call())
        except BaseException as failure:  # kept, and raised where the result is asked for
            self._failure = failure
