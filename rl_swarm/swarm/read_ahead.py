"""Fetch peers' files while the node generates, so that `gather` waits less for the store. Knows nothing of their content."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

from rl_swarm.errors import BadDocument, NotFound, StoreAway
from rl_swarm.swarm.quota import BYTES, UNREADY

Plan = Callable[[Callable[[], bool]], Sequence[str]]


class ReadAhead:
    """`begin` starts a thread that fetches `parallel` files at a time, within one peer's quota; `end` waits for at most those.

    Without `background` (many nodes in one process, on a store in memory) nothing is fetched ahead.
    """

    def __init__(self, background: bool, parallel: int = 1) -> None:
        self._background, self._parallel = background, parallel
        self._fetched: dict[str, bytes] = {}
        self._thread: threading.Thread | None = None
        self._ending = False
        self._failure: BaseException | None = None

    def begin(self, plan: Plan, most: int, fetch: Callable[[str], bytes]) -> None:
        """Fetch the first `most` files that `plan` names, and forget fetched files that it does not name.

        The thread calls both: they may ask the store, and must change nothing. `plan` is given a function that tells it to stop
        early. A file for which `fetch` raises is left out.
        """
        if not self._background:
            return
        self.end()
        self._ending = False
        self._thread = threading.Thread(target=lambda: self._run(plan, most, fetch), name="read ahead", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop fetching; raise the failure of the thread, a bug that must not go unnoticed."""
        self._ending = True
        if self._thread:
            self._thread.join()
            self._thread = None
        if self._failure:
            raise RuntimeError("the thread that reads ahead failed") from self._failure

    def take(self, key: str) -> bytes | None:
        return self._fetched.pop(key, None)

    def _run(self, plan: Plan, most: int, fetch: Callable[[str], bytes]) -> None:
        try:
            self._fetch(plan(lambda: self._ending), most, fetch)
        except StoreAway:  # the loop will notice and say so
            return
        except BaseException as failure:  # raised in the loop's own thread by end()
            self._failure = failure

    def _fetch(self, keys: Sequence[str], most: int, fetch: Callable[[str], bytes]) -> None:
        if self._ending:  # the plan may be incomplete
            return
        self._fetched = {key: self._fetched[key] for key in keys if key in self._fetched}
        faults = 0

        def attempt(key: str) -> bytes | None:
            try:
                return self._fetched.get(key) or fetch(key)
            except (NotFound, BadDocument):  # perhaps incomplete: `gather` looks again and judges
                return None

        with ThreadPoolExecutor(self._parallel) if self._parallel > 1 else nullcontext() as threads:
            run = threads.map if threads else map
            for place in range(0, min(most, len(keys)), self._parallel):
                if self._ending or faults >= UNREADY or sum(map(len, self._fetched.values())) >= BYTES:
                    return
                some = keys[place : min(place + self._parallel, most)]
                for key, data in zip(some, run(attempt, some), strict=True):
                    if data is None:
                        faults += 1
                    else:
                        self._fetched[key] = data
