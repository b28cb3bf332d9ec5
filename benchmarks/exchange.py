"""What sharing costs: store operations, bytes and seconds per node and round on a folder, for 4, 64 and 1,000 nodes at J = 4.

All nodes publish every round; the cost of one of them is measured (everyone's is alike), through the shipped exchange, rounds and
publisher; seconds are those that its loop waits. Beside it stand the figures that the reference documents claim for 4 nodes.
"""

import argparse
import json
import tempfile
import time
from collections import Counter
from pathlib import Path

from rl_swarm.clock import SystemClock
from rl_swarm.document import seal
from rl_swarm.randomness import generator, stream_seed
from rl_swarm.rollout import Bundle, Completion, Rollout, encode
from rl_swarm.store import Store
from rl_swarm.store.folder import FolderStore
from rl_swarm.swarm.choice import pick
from rl_swarm.swarm.rounds import Announcement, Reward, Rounds
from tests.support.members import LAYOUT, exchange_of, member_of
from tests.support.standins import StandInPolicy, StandInTasks

OWN, EXTERNAL, GROUP = 4, 4, 8
TEXT = "Let me think about that step by step. " * 4


def answers(node_id: str, number: int) -> list[Rollout]:
    tasks = StandInTasks(node_id)
    tasks.cursor = number * OWN
    questions = tasks.draw(OWN)
    groups = StandInPolicy().answer(questions, GROUP, stream_seed(node_id, number))
    made = []
    for slot, (question, group) in enumerate(zip(questions, groups, strict=True)):
        scores = tasks.score_all(question, [done.text for done in group])
        scored = tuple(Completion(done.text, score, tokens=40, logprob=-20.0) for done, score in zip(group, scores, strict=True))
        made.append(Rollout(question, scored, node_id, number, slot=slot))
    return made


def publish_others(store: Store, names: list[str], number: int) -> int:
    size = 0
    for node_id in names:
        data = encode(
            Bundle(
                LAYOUT.experiment_name,
                node_id,
                number,
                tuple(answers(node_id, number)),
                timestamp=1.0,
                model="m",
                tasks_version="t",
            )
        )
        store.put(LAYOUT.bundle(number, node_id), data)
        store.put(LAYOUT.reward(number, node_id), seal(Reward(node_id, number, 0.5, OWN * GROUP, 1.0)))
        size += len(data)
    return size


def measure(nodes: int, rounds: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "store"
        root.mkdir()
        others = FolderStore(root)
        store = FolderStore(root)
        clock = SystemClock()
        member = member_of(store, Path(folder), "me", clock, background=True)
        exchange, publisher = exchange_of(member), member.publisher
        listener, announcer = Rounds(store, LAYOUT), Rounds(others, LAYOUT)
        announcer.announce(Announcement(0, "boss", "s", 1, 1.0, [], []))
        listener.survey()
        store.counts.clear()
        seconds, reached = 0.0, 0
        for number in range(rounds):
            publish_others(others, [f"node{peer}" for peer in range(nodes - 1)], number)
            exchange.look_ahead(number, 0, EXTERNAL, generator("bench", number))
            own = answers("me", number)
            began = time.perf_counter()
            for rollout in own:
                exchange.offer(rollout, 0)
            exchange.end_stage()
            chooser = generator("bench", number)
            external = pick(exchange.gather(number, 0, EXTERNAL, chooser), EXTERNAL, chooser)
            exchange.mark_used(external)
            publisher.put(LAYOUT.reward(number, "me"), seal(Reward("me", number, 0.5, OWN * GROUP, 1.0)))
            seconds += time.perf_counter() - began
            announcer.announce(Announcement(number + 1, "boss", "s", 1, 1.0, [f"node{peer}" for peer in range(nodes)], []))
            began = time.perf_counter()
            listener.advance(number)
            seconds += time.perf_counter() - began
            reached += len(external)
        publisher.close(60.0)
        return _per_round(store.counts, seconds, reached, rounds)


def _per_round(counts: Counter[str], seconds: float, reached: int, rounds: int) -> dict[str, float]:
    kinds = ("put", "get", "list", "delete")
    row = {f"{kind}s": counts[kind] / rounds for kind in kinds}
    row["operations"] = sum(counts[kind] for kind in kinds) / rounds
    row["kilobytes_out"] = counts["bytes_out"] / rounds / 1000
    row["kilobytes_in"] = counts["bytes_in"] / rounds / 1000
    row["milliseconds"] = 1000 * seconds / rounds
    row["external_reached"] = reached / rounds
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("bench-results/exchange.json"))
    output = parser.parse_args().output
    results = {str(nodes): measure(nodes, rounds) for nodes, rounds in ((4, 50), (64, 20), (1000, 8))}
    columns = list(results["4"])
    print("per node and round  " + "  ".join(f"{column:>16}" for column in columns))
    for nodes, row in results.items():
        print(f"{nodes:>13} nodes  " + "  ".join(f"{row[column]:16.2f}" for column in columns))
    growth = results["1000"]["operations"] / results["4"]["operations"]
    stored = 4 * 100 * results["4"]["kilobytes_out"] / 1000
    print(f"operations at 1,000 nodes / at 4 nodes: {growth:.2f} (at most 2)")
    print(f"4 nodes: {4 * results['4']['operations']:.1f} calls a stage for all nodes (the documents claim about 16)")
    print(f"4 nodes: {stored:.1f} MB per 100 rounds (the documents claim about 8, for two stages a round)")
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(
        json.dumps({"per_node_round": results, "growth": growth, "megabytes_per_100_rounds": stored}, indent=1) + "\n"
    )
    if growth > 2:
        raise SystemExit("operations grow with the number of nodes")


if __name__ == "__main__":
    main()
