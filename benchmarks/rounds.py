"""A round of this project against a round of TRL's GRPOTrainer and one of GenRL, in turns (ABCABC…), each in its own process.

TRL runs at the micro-batch size that is fastest for it here, found in the same run. GenRL takes part with nano; with SmolLM2 it had
13 GB in its first update and was not done, so that all three would not fit in the memory of a small machine. Where its process ends
before its time, the results say so. Writes bench-results/rounds.json.
"""

import argparse
import json
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.smollm2 import smollm2
from benchmarks.work import Work
from rl_swarm.learning.models.loading import locate

TRL_PYTHON = Path(".venv-trl/bin/python")
GENRL_PYTHON = Path(".venv-genrl/bin/python")


class Ended(SystemExit):
    """A contender's process ended before its time; ends this one too, unless it is caught."""

    def __init__(self, code: int) -> None:
        super().__init__(f"a contender ended with code {code}: run it by hand to see why")
        self.returned = code


class Contender:
    """The other end of `benchmarks.contender`."""

    def __init__(self, python: Path, *arguments: str) -> None:
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        self._process = subprocess.Popen(
            [str(python), "-m", "benchmarks.contender", *arguments],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{") and '"' in line:
                message: dict[str, Any] = json.loads(line)
                return message
        raise Ended(self._process.wait())

    def step(self) -> dict[str, Any]:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # reading then tells how it ended
            self._process.stdin.write("step\n")
            self._process.stdin.flush()
        return self._read()

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


def compare(name: str, work: Work, micro_sizes: list[int], turns: int, with_genrl: bool) -> dict[str, Any]:
    described = json.dumps(asdict(work))
    tried = {}
    for micro in micro_sizes if len(micro_sizes) > 1 else []:
        contender = Contender(TRL_PYTHON, "trl", described, str(micro))
        if turns > 4:
            contender.step()  # the first is slower; where a step takes a minute, that hardly matters
        tried[micro] = contender.step()["seconds"]
        contender.end()
        print(f"{name}: TRL with micro-batches of {micro}: {tried[micro]:.2f} s a step", flush=True)
    best = min(tried, key=lambda micro: tried[micro]) if tried else micro_sizes[0]
    sides = {"ours": Contender(Path(sys.executable), "ours", described), "trl": Contender(TRL_PYTHON, "trl", described, str(best))}
    rows: dict[str, list[dict[str, Any]]] = {"ours": [], "trl": []}
    failed: dict[str, str] = {}
    if with_genrl:
        try:
            sides["genrl"] = Contender(GENRL_PYTHON, "genrl", json.dumps(asdict(replace(work, model=locate(work.model)))))
            rows["genrl"] = []
        except Ended as end:
            failed["genrl"] = f"ended with code {end.returned} while it began"
    for turn in range(turns + 1):
        for side, contender in list(sides.items()):
            try:
                row = contender.step()
            except Ended as end:
                if side != "genrl":
                    raise
                failed[side] = f"ended with code {end.returned} in round {turn + 1}"
                del sides[side], rows[side]
                print(f"{name}: {side:>5} {failed[side]}", flush=True)
                continue
            print(
                f"{name}: {side:>5} {row['seconds']:8.3f} s (generate {row['generate']:.3f}, update {row['update']:.3f})",
                flush=True,
            )
            if turn:  # the first turn warms all up
                rows[side].append(row)
    for contender in sides.values():
        contender.end()
    return summary(work, best, tried, rows) | {side: {"failed": why} for side, why in failed.items()}


def ratios(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> dict[str, float]:
    """Medians over the turns of our seconds to theirs."""
    return {
        part: median(one[key] / other[key] for one, other in zip(ours, theirs, strict=True))
        for part, key in (("ratio", "seconds"), ("ratio_generate", "generate"), ("ratio_update", "update"))
    }


def summary(work: Work, micro: int, tried: dict[int, float], rows: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    result: dict[str, Any] = {"work": asdict(work) | {"model": Path(work.model).name}, "trl_micro_batch": micro, "trl_tried": tried}
    for side, steps in rows.items():
        keys = [key for key in steps[0] if isinstance(steps[0][key], (int, float))]
        result[side] = {key: median(step[key] for step in steps) for key in keys} | {"steps": [step["seconds"] for step in steps]}
        result[side]["peak_bytes"] = max(step["peak_bytes"] for step in steps)
        result[side]["tokens_per_s"] = work.tokens / result[side]["generate"]
    result |= ratios(rows["ours"], rows["trl"])
    if "genrl" in rows:
        result["genrl"] |= ratios(rows["ours"], rows["genrl"])
    own = result["ours"]
    own["over_parameters_bytes"] = own["peak_bytes"] - 4 * own["parameter_bytes"]  # weights, gradients, Adam's two averages
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("bench-results/rounds.json"))
    parser.add_argument("--turns", type=int, default=3, help="turns with SmolLM2; nano, which is quick, takes five times as many")
    options = parser.parse_args()
    for python in (TRL_PYTHON, GENRL_PYTHON):
        if not python.exists():
            raise SystemExit(f"{python} is missing: run this by 'make bench', which makes it")
    results = {
        "nano": compare("nano", Work("nano", 8, 8, 40, 24), [16, 32, 64], 5 * options.turns, True),
        "smollm2": compare("smollm2", Work(str(smollm2()), 4, 8, 137, 64), [8, 16, 32], options.turns, False),
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(results, indent=1) + "\n")
    for name, result in results.items():
        print(f"{name}: a round takes {result['ratio']:.2f} of TRL's")
        if "ratio" in result.get("genrl", {}):
            print(f"{name}: a round takes {result['genrl']['ratio']:.2f} of GenRL's")


if __name__ == "__main__":
    main()
