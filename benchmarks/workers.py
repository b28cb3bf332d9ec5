"""Several nano workers on one machine: node-rounds per second, and what store, scoring and journal take of a round.

The shipped node in processes of its own, on a folder store, without a coordinator: one worker held to one core and four on two
cores, one thread each, in turns; the gain is the median of the turns' ratios. Writes bench-results/workers.json.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

ROUNDS = 100
TURNS = 3
WARM = 5  # rounds of each worker that do not count
SETTINGS = {
    "MODEL_NAME": "nano",
    "CPU_ONLY": "1",
    "NUM_TRAIN_SAMPLES": "8",
    "NUM_GENERATIONS": "8",
    "EVAL_INTERVAL": "0",
    "CHECKPOINT_INTERVAL": "1000",
    "OMP_NUM_THREADS": "1",
}


def node() -> None:
    """One worker: the shipped loop, with the wall time of every round."""
    from rl_swarm.node.assembly import open_node
    from rl_swarm.node.learner import make_learning_worker
    from rl_swarm.tasks import tasks_version

    opened = open_node(os.environ, {}, tasks_version=tasks_version(), console=None)

    def loop() -> str:
        worker = make_learning_worker(opened, lambda node, policy: None)
        for number in range(opened.config.max_rounds):
            began = time.time()
            worker.play(number)
            print(json.dumps({"round": number, "began": began, "ended": time.time()}), flush=True)
        return "complete"

    opened.run(loop)


def run(workers: int, cores: set[int], external: int, rounds: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        started = []
        for index in range(workers):
            settings = {
                "GDRIVE_PATH": f"{folder}/store",
                "EXPERIMENT_NAME": "bench",
                "NODE_ID": f"w{index}",
                "MAX_ROUNDS": str(rounds),
            }
            settings["NUM_TRANSPLANT_TREES"] = str(external)
            process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.workers", "--node"],
                env={**os.environ, **SETTINGS, **settings, "HOME": folder},
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            os.sched_setaffinity(process.pid, cores)
            started.append(process)
        outputs = [process.communicate(timeout=1800)[0] for process in started]
        rows = [[json.loads(line) for line in output.splitlines() if line.startswith("{")] for output in outputs]
        if any(len(found) != rounds for found in rows):
            raise SystemExit("a worker did not finish its rounds")
        metrics = [json.loads(line) for path in Path(folder).rglob("metrics*.jsonl") for line in path.read_text().splitlines()]
    # The time in which all are at work: from the last one's first counted round to the first one's last.
    begin, end = max(found[WARM]["began"] for found in rows), min(found[-1]["ended"] for found in rows)
    counted = sum(begin <= row["began"] and row["ended"] <= end for found in rows for row in found)
    walls = {(f"w{index}", row["round"]): row["ended"] - row["began"] for index, found in enumerate(rows) for row in found}
    shares = [
        1 - (row["seconds"]["generate"] + row["seconds"]["train"]) / walls[row["node_id"], row["round"]]
        for row in metrics
        if row["round"] >= WARM
    ]
    return {
        "workers": workers,
        "external": external,
        "cores": len(cores),
        "node_rounds_per_s": counted / (end - begin),
        "round_seconds": median(walls[key] for key in walls if key[1] >= WARM),
        "other_share": median(shares),
    }


def _middle(runs: list[dict[str, Any]]) -> dict[str, Any]:
    return {key: median(run[key] for run in runs) for key in runs[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--node", action="store_true", help="be one of the workers")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--output", type=Path, default=Path("bench-results/workers.json"))
    options = parser.parse_args()
    if options.node:
        node()
        return
    available = sorted(os.sched_getaffinity(0))[:2]
    # Without external rollouts, so that a round is the same work however many workers there are; then with them.
    one, four = (1, set(available[:1]), 0), (4, set(available), 0)
    turns = [[run(*plan, options.rounds) for plan in (one, four)] for _ in range(TURNS)]
    gains = [fast["node_rounds_per_s"] / alone["node_rounds_per_s"] for alone, fast in turns]
    others = [run(*plan, options.rounds) for plan in ((2, set(available), 0), (4, set(available), 4))]
    results = [_middle([alone for alone, _ in turns]), others[0], _middle([fast for _, fast in turns]), others[1]]
    gain = median(gains)
    for row in results:
        print(
            f"{row['workers']} workers on {row['cores']} cores, J = {row['external']}: {row['node_rounds_per_s']:.2f} rounds/s, "
            f"{row['round_seconds']:.3f} s each, {100 * row['other_share']:.1f} % of it neither generation nor update"
        )
    print(f"4 workers on two cores / 1 worker on one core: {gain:.2f} (turns: {', '.join(f'{each:.2f}' for each in gains)})")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps({"runs": results, "gain": gain, "gains": gains}, indent=1) + "\n")


if __name__ == "__main__":
    main()
