"""Write docs/scale.md: what a node costs in a day on each store, computed from the figures of the benchmarks. Measures nothing.

Prices and limits are those that the services publish. They change: the page says so.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_swarm.node.coordinator import POLL_SECONDS

RESULTS, PAGE = Path("bench-results"), Path("docs/scale.md")
SIZES = (10, 1_000, 10_000)
ROUND_SECONDS = 60
ROUNDS = 86_400 // ROUND_SECONDS  # a day
PAGE_NAMES = 1_000
QUOTA = 325_000  # units a minute and user of Drive's API
UNITS = {"changes": 100, "list": 100, "download": 200, "write": 50}  # of one request
DRIVE = {"changes": 8.0, "write": 6.6, "download": 4.0, "list": 0.4}  # per node and round: tests/swarm/test_drive_quota.py
ENTRIES = 500  # in a folder of a mounted Drive, above which it lists slowly or in part
READS, WRITES = 5_500, 3_500  # requests a second that S3 promises for one prefix; listings are reads
BYTES_OF_NUMBER = 4
MODELS = {"nano": 1.0e6, "0.5 billion parameters": 0.49e9, "the same, LORA_RANK=16": 8.8e6}  # numbers that are trained


@dataclass(frozen=True)
class Prices:
    """US dollars: for 1,000 requests that write or list, for 1,000 that read, for a GB kept for a month, for a GB that leaves."""

    writing: float
    reading: float
    month: float
    leaving: float

    def of_requests(self, row: dict[str, float]) -> float:
        return ((row["puts"] + row["lists"]) * self.writing + row["gets"] * self.reading) / 1000

    def of_day(self, row: dict[str, float], away: bool) -> float:
        """One node: its requests, a month of what it writes in a day and, if nodes are outside of the cloud, what it reads."""
        gigabytes = (ROUNDS * row["kilobytes_out"] / 1e6, ROUNDS * row["kilobytes_in"] / 1e6)
        return ROUNDS * self.of_requests(row) + gigabytes[0] * self.month + away * gigabytes[1] * self.leaving


SERVICES = {
    "Amazon S3": Prices(0.005, 0.0004, 0.023, 0.09),
    "Google Cloud Storage": Prices(0.005, 0.0004, 0.020, 0.12),
    "Azure Blob Storage": Prices(0.0065, 0.0005, 0.018, 0.087),
    "Cloudflare R2": Prices(0.0045, 0.00036, 0.015, 0.0),
}


def units(nodes: int) -> float:
    """Units of Drive's quota per node and round. The feed shows everybody's changes, so a large swarm makes its pages many."""
    pages = max(DRIVE["changes"], nodes * DRIVE["write"] / PAGE_NAMES)
    return pages * UNITS["changes"] + sum(DRIVE[kind] * UNITS[kind] for kind in ("write", "download", "list"))


def load() -> tuple[dict[str, Any], dict[str, Any]]:
    missing = [name for name in ("exchange", "crowd") if not (RESULTS / f"{name}.json").exists()]
    if missing:
        raise SystemExit(f"bench-results lacks {', '.join(missing)}: run 'python -m benchmarks.NAME' for each")
    folder, bucket = (json.loads((RESULTS / f"{name}.json").read_text()) for name in ("exchange", "crowd"))
    return folder["per_node_round"], bucket


def page(folder: dict[str, dict[str, float]], crowd: dict[str, Any]) -> str:
    bucket = {nodes: crowd["per_node_round"][str(nodes)] for nodes in SIZES}
    parts = [_head(), _figures(folder, bucket, crowd["growth"]), _money(bucket), _drive(), _checkpoints(), _limits(bucket)]
    return "\n\n".join(parts) + "\n"


def _head() -> str:
    return f"""# Scale

What one node costs in a day, with a round a minute ({ROUNDS:,} rounds), I 4, J 4, G 8 and short completions. `python -m benchmarks.scale` writes this page
from the figures of `benchmarks.exchange` (a folder) and `benchmarks.crowd` (a bucket). Bytes grow with the length of completions and with G;
`ROLLOUT_COMPRESSION=zstd` takes four fifths off what is written and read."""  # noqa: E501


def _table(columns: list[str], rows: list[list[str]]) -> str:
    lines = [f"| {' | '.join(columns)} |", f"|---|{'---:|' * (len(columns) - 1)}", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines)


def _figures(folder: dict[str, dict[str, float]], bucket: dict[int, dict[str, float]], growth: dict[str, float]) -> str:
    rows = [
        [
            f"bucket, {nodes:,} nodes",
            *(f"{row[kind]:.1f}" for kind in ("puts", "gets", "lists", "deletes")),
            f"{ROUNDS * row['requests']:,.0f}",
            f"{ROUNDS * row['kilobytes_out'] / 1000:.0f}",
            f"{ROUNDS * row['kilobytes_in'] / 1000:.0f}",
            f"{row['seconds_waited']:.2f}",
        ]
        for nodes, row in bucket.items()
    ]
    rows += [
        [
            f"folder, {int(nodes):,} nodes",
            *(f"{row[kind]:.1f}" for kind in ("puts", "gets", "lists", "deletes")),
            f"{ROUNDS * row['operations']:,.0f}",
            f"{ROUNDS * row['kilobytes_out'] / 1000:.0f}",
            f"{ROUNDS * row['kilobytes_in'] / 1000:.0f}",
            f"{row['milliseconds'] / 1000:.2f}",
        ]
        for nodes, row in folder.items()
    ]
    columns = ["one node", "puts", "gets", "lists", "deletes", "requests a day", "MB written a day", "MB read a day", "s waited"]
    return f"""## Requests and bytes
Puts to deletes and the seconds that the loop waits for the store are of one round.

{_table(columns, rows)}

**The bucket** is simulated: all nodes publish, ten of them play with the shipped loop in virtual time, on a store in memory with the
latencies and the pages of a bucket. Journals, heartbeats and looks for the next round are counted. From 10 to 10,000 nodes the
requests of a node grow by a factor of {growth["requests"]:.2f}, its waiting by {growth["seconds_waited"]:.2f}. Of a folder with more than {PAGE_NAMES:,} names a node lists one
page, another one in each round, or two where the first reaches the end of the folder.

**The folder** is a real one, with the exchange alone: journals and heartbeats are not counted. Its listings are always whole."""  # noqa: E501


def _money(bucket: dict[int, dict[str, float]]) -> str:
    rows = [
        [name, *(f"{prices.of_day(row, away):.3f}" for row in bucket.values() for away in (False, True))]
        for name, prices in SERVICES.items()
    ]
    columns = ["US dollars", *(f"{nodes:,} nodes{place}" for nodes in SIZES for place in ("", ", outside"))]
    everybody = SIZES[-1] * SERVICES["Amazon S3"].of_day(bucket[SIZES[-1]], False)
    return f"""## Money, per node and day
Requests, and a month of what was written; "outside" adds what a node reads from outside of the cloud. List prices of one region without free
allowances, as the services published them in 2025: check them before you rely on them. Checkpoints come on top (below).

{_table(columns, rows)}

A swarm of {SIZES[-1]:,} nodes on S3 costs {everybody:,.0f} dollars a day, most of it for writing and listing. Hugging Face Storage Buckets publish
no price for requests. A folder costs nothing."""  # noqa: E501


def _drive() -> str:
    rows = [
        [f"{nodes:,}", f"{units(nodes):,.0f}", f"{ROUNDS * units(nodes):,.0f}", f"{100 * nodes * units(nodes) / QUOTA:,.0f} %"]
        for nodes in SIZES
    ]
    columns = ["nodes", "units a round", "units a day", "of one account's quota, all nodes"]
    return f"""## Quota of Google Drive's API, per node
{QUOTA:,} units a minute and account; a request is free of charge. Measured on the fake of the tests, per node and round: {DRIVE["changes"]:g} looks at the changes
feed, {DRIVE["write"]:g} writes, {DRIVE["download"]:g} downloads, {DRIVE["list"]:g} lists. The feed shows everybody's changes: beyond about {_feed_limit():,} nodes its pages cost more than the looks.

{_table(columns, rows)}

One account carries about {int(QUOTA / units(SIZES[0])):,} nodes. With an account for each node the quota never binds below {SIZES[-1]:,}, but every node then
reads {SIZES[-1] * DRIVE["write"] / PAGE_NAMES:.0f} pages of the feed a minute. Take a bucket from a few hundred nodes on."""  # noqa: E501


def _feed_limit() -> int:
    return 100 * round(DRIVE["changes"] * PAGE_NAMES / DRIVE["write"] / 100)


def _checkpoints() -> str:
    rows = []
    for name, trained in MODELS.items():
        size = 3 * trained * BYTES_OF_NUMBER
        rows.append([name, f"{size / 1e6:,.0f}", *(f"{size / 1e9 * ROUNDS / interval:,.1f}" for interval in (10, 100))])
    columns = ["trained", "MB each", "GB a day, CHECKPOINT_INTERVAL=10", "GB a day, 100"]
    return f"""## Checkpoints, per node
A checkpoint holds what is trained and both averages of Adam, in float32. The store keeps two of a node. Writing into a cloud is free, and so is
deleting; the bandwidth of the node is not.

{_table(columns, rows)}"""  # noqa: E501


def _limits(bucket: dict[int, dict[str, float]]) -> str:
    row, most = bucket[SIZES[-1]], SIZES[-1]
    reads, writes = ((row["gets"] + row["lists"]) / ROUND_SECONDS, (row["puts"] + row["deletes"]) / ROUND_SECONDS)
    bound = int(min(READS / reads, WRITES / writes))
    looks = most / PAGE_NAMES / POLL_SECONDS
    return f"""## What breaks first, and what to turn
| store | breaks first | turn |
|---|---|---|
| folder on a disk or NFS | the listings: all names of three rounds, twice a round; at {most:,} nodes {6 * most:,} names a round for each node | `ROLLOUT_WINDOW_ROUNDS=1`, several experiments |
| mounted Drive | folders of more than about {ENTRIES} entries: {ENTRIES} nodes | the API, or a bucket |
| Drive by its API | the quota of one account: {int(QUOTA / units(SIZES[0])):,} nodes with a round a minute | longer rounds (`COORDINATOR_ROUND_INTERVAL`), an account for each node, a bucket |
| bucket | uploads of checkpoints, if all weights of a large model are trained: see above | `CHECKPOINT_INTERVAL`, `LORA_RANK` |
| bucket, many nodes | {READS:,} reads and {WRITES:,} writes a second on one prefix: about {bound:,} nodes; {most:,} make {most * reads:,.0f} and {most * writes:,.0f} | longer rounds, several experiments |
| bucket, many nodes | the coordinator: each look at the rewards of a round reads a page for every {PAGE_NAMES:,} nodes, {looks:.0f} requests a second at {most:,} | no coordinator: workers go on by themselves |
| money | puts and listings: {100 * (row["puts"] + row["lists"]) * SERVICES["Amazon S3"].writing / 1000 / SERVICES["Amazon S3"].of_requests(row):.0f} % of the price of requests | longer rounds: all figures of this page follow the number of rounds |

A node whose store is slow or away goes on with what it has, reads less than J, and says so."""  # noqa: E501


def main() -> None:
    PAGE.write_text(page(*load()))
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    main()
