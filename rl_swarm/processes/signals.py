"""What to do when the system or a person asks this process to stop."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def on_signals(handle: Callable[[int], None], *, closed_terminal: bool = False) -> Iterator[None]:
    """Call `handle` with the number of each SIGTERM and Ctrl-C, and where wanted of SIGHUP, for as long as the context lasts."""
    numbers = (signal.SIGTERM, signal.SIGINT, *((signal.SIGHUP,) if closed_terminal else ()))
    before = {number: signal.signal(number, lambda got, frame: handle(got)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
