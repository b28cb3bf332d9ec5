"""How long a node waits for a slow store in a round, with and without reading ahead.

A folder whose every operation takes a while, as a mounted Drive's does. Peers are either faster than this node, and have published
before it generates, or at the same pace, and publish when it does; it may also generate too quickly for reading ahead to be of use.
The waiting is that of `gather`, through the shipped exchange.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from statistics import fmean

from benchmarks.exchange import EXTERNAL, publish_others
from rl_swarm.clock import SystemClock
from rl_swarm.randomness import generator
from rl_swarm.store.folder import FolderStore
from rl_swarm.swarm.choice import pick
from tests.support.members import exchange_of, member_of

PEERS, ROUNDS = 7, 12
OPERATION_SECONDS = 0.2
SITUATIONS = (("faster", 2.0), ("at the same pace", 2.0), ("at the same pace", 0.1))  # peers, and seconds of generation


class SlowFolder(FolderStore):
    def _get(self, key: str, limit: int, offset: int) -> bytes:
        time.sleep(OPERATION_SECONDS)
        return super()._get(key, limit, offset)

    def _list(self, folder: str) -> list[str]:
        time.sleep(OPERATION_SECONDS)
        return super()._list(folder)


def waiting(peers: str, generation: float, ahead: bool) -> dict[str, float]:
    """Seconds of `gather` in a round, once the window is full, and what it takes."""
    with tempfile.TemporaryDirectory() as folder:
        root, clock = Path(folder) / "store", SystemClock()
        root.mkdir()
        others, store = FolderStore(root), SlowFolder(root)
        member = member_of(store, Path(folder), "me", clock, background=True)
        exchange, publisher = exchange_of(member), member.publisher
        names, seconds, reached = [f"node{peer}" for peer in range(PEERS)], [], []
        for number in range(ROUNDS):
            if peers == "faster":
                publish_others(others, names, number)
            if ahead:
                exchange.look_ahead(number, 0, EXTERNAL, generator("overlap", number))
            time.sleep(generation)
            if peers != "faster":
                publish_others(others, names, number)
            chooser, began = generator("overlap", number), time.perf_counter()
            external = pick(exchange.gather(number, 0, EXTERNAL, chooser), EXTERNAL, chooser)
            seconds.append(time.perf_counter() - began)
            exchange.mark_used(external)
            reached.append(len(external))
        publisher.close(1.0)
        return {
            "seconds": fmean(seconds[3:]),
            "reads": store.counts["get"] / ROUNDS,
            "listings": store.counts["list"] / ROUNDS,
            "external_reached": fmean(reached),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("bench-results/overlap.json"))
    output = parser.parse_args().output
    runs = [
        {"peers": peers, "generation": generation, "ahead": ahead, **waiting(peers, generation, ahead)}
        for peers, generation in SITUATIONS
        for ahead in (False, True)
    ]
    for run in runs:
        print("  ".join(f"{what} {figure:.2f}" if isinstance(figure, float) else f"{figure!s:16}" for what, figure in run.items()))
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps({"operation_seconds": OPERATION_SECONDS, "runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    main()
