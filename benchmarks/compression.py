"""What compression and delta encoding would save on the bundles of real runs, and the time that they take.

    python -m benchmarks.compression STORE EXPERIMENT...

Delta encoding here means that zstd gets the same node's bundle of the round before as its dictionary, so that it stores only what
differs. The first bundle of all as the dictionary shows how much of that is common to all bundles, not to two rounds.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import fmean

from zstandard import DICT_TYPE_RAWCONTENT, ZstdCompressionDict, ZstdCompressor

from rl_swarm.packing import packed, unpacked
from rl_swarm.rollout import BUNDLE_BYTES
from rl_swarm.store import Store, open_store
from rl_swarm.swarm.layout import Layout, node_of_file, recognised, round_of_folder

REPEATS = 20


def bundles(store: Store, layout: Layout) -> dict[str, list[bytes]]:
    """The bundles of each node, by round."""
    found: dict[str, list[bytes]] = {}
    for number in sorted(recognised(round_of_folder, store.list(layout.rollouts))):
        folder = layout.rollouts_of(number)
        for name in store.list(folder):
            data = unpacked(store.get(f"{folder}/{name}", limit=BUNDLE_BYTES), BUNDLE_BYTES)
            found.setdefault(node_of_file(name) or "", []).append(data)
    return found


def microseconds(work: Callable[[bytes], object], datas: Sequence[bytes]) -> float:
    """Of one call: the fastest of several runs, since other processes disturb."""

    def run() -> float:
        began = time.perf_counter()
        for data in datas:
            work(data)
        return (time.perf_counter() - began) / len(datas) * 1e6

    return min(run() for _ in range(REPEATS))


def with_dictionary(data: bytes, known: bytes) -> bytes:
    return ZstdCompressor(level=3, dict_data=ZstdCompressionDict(known, dict_type=DICT_TYPE_RAWCONTENT)).compress(data)


def rows(by_node: dict[str, list[bytes]]) -> list[tuple[str, float, float, float]]:
    """Name, mean bytes, and microseconds to pack and to unpack."""
    datas = [data for found in by_node.values() for data in found]
    table = [("none", fmean(map(len, datas)), 0.0, 0.0)]
    for method in ("gzip", "zstd"):
        files = [packed(data, method) for data in datas]
        packing = microseconds(lambda data, method=method: packed(data, method), datas)  # type: ignore[misc]
        table.append((method, fmean(map(len, files)), packing, microseconds(lambda data: unpacked(data, BUNDLE_BYTES), files)))
    return table


def delta(by_node: dict[str, list[bytes]]) -> tuple[float, float, float]:
    """Mean bytes of a bundle with zstd; with the bundle of the round before as its dictionary; and with one that never changes."""
    pairs = [pair for found in by_node.values() for pair in pairwise(found)]
    fixed = pairs[0][0]
    return (
        fmean(len(packed(data, "zstd")) for _, data in pairs),
        fmean(len(with_dictionary(data, before)) for before, data in pairs),
        fmean(len(with_dictionary(data, fixed)) for _, data in pairs),
    )


def print_differences(name: str, count: int, sizes: Sequence[float]) -> None:
    """Print the bytes of `delta`, and what is saved of those with zstd alone."""
    plain, differences, fixed = sizes
    for method, size in (("difference to the round before", differences), ("difference to the first bundle", fixed)):
        saved = f"{plain - size:.0f} bytes, {1 - size / plain:.1%} of zstd"
        print(f"| {name} | {count} | zstd, {method} | {size:.0f} | {saved} | – | – |")


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure compression on the bundles of real runs.")
    parser.add_argument("store")
    parser.add_argument("experiments", nargs="+")
    chosen = parser.parse_args()
    store = open_store(chosen.store, writable=False)
    print("| run | bundles | method | bytes | saved | pack, µs | unpack, µs |", "|---|---|---|---|---|---|---|", sep="\n")
    sums = [0.0, 0.0, 0.0]  # one mean bundle of each run
    for name in chosen.experiments:
        by_node = bundles(store, Layout(name))
        count = sum(map(len, by_node.values()))
        table = rows(by_node)
        for method, size, packing, unpacking in table:
            saved = f"{1 - size / table[0][1]:.1%}"
            print(f"| {name} | {count} | {method} | {size:.0f} | {saved} | {packing:.0f} | {unpacking:.0f} |")
        sizes = delta(by_node)
        sums = [total + size for total, size in zip(sums, sizes, strict=True)]
        print_differences(name, count, sizes)
    print_differences("one mean bundle of each run", len(chosen.experiments), sums)


if __name__ == "__main__":
    main()
