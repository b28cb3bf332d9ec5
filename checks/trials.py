"""Which settings keep and add knowledge? Small runs of nano on pilot seeds, which are never reported.

    python -m checks.trials STUDY [--seeds 2] [--parallel 2] [--output docs/trials.jsonl]

A study is a list of trials: swarms of the shipped loop that differ in a few settings, or in a variant of the update that no setting
reaches. Each finished run is a line of the output file: started again, the command goes on. `docs/LOG.md` says what came out.
"""

import argparse
import copy
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any
from unittest.mock import patch

from rl_swarm.processes.stopping import watching_launcher
from rl_swarm.reproduce.plan import PILOT_SEEDS, PRESETS, Arm, Cell, Split, versions
from rl_swarm.tasks.spec import TASK_PRESETS, parse_tasks

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
NANO = {"MODEL_NAME": "nano", "CPU_ONLY": "true", "TASKS": "easy"}
LEVELS = f"{TASK_PRESETS['easy']},{PRESETS['nano'].settings['TASKS']}"


@dataclass(frozen=True)
class Trial:
    name: str
    own: int = 8
    external: int = 0
    nodes: int = 1
    rounds: int = 240
    settings: Mapping[str, str] = field(default_factory=dict)
    variant: str = ""


def alone(name: str, rounds: int = 240, own: int = 8, variant: str = "", **settings: str) -> Trial:
    return Trial(name, own=own, rounds=rounds, settings=settings, variant=variant)


def swarm(own: int, external: int, nodes: int, rounds: int = 300, variant: str = "", **settings: str) -> Trial:
    more = "".join(f" {key.lower()} {value}" for key, value in settings.items()) + (f" {variant}" if variant else "")
    return Trial(f"{own}/{external} × {nodes}{more}, {rounds} rounds", own, external, nodes, rounds, settings, variant)


STUDIES = {
    "schedule": [alone(f"{kind}", LEARNING_RATE_SCHEDULE=kind) for kind in ("constant", "linear", "cosine")],
    "longer": [
        alone(f"linear from {rate}, {rounds} rounds", rounds, LEARNING_RATE=rate)
        for rounds in (480, 960)
        for rate in ("1e-4", "2e-4", "3e-4")
    ],
    "rate": [alone(f"linear from {rate}", LEARNING_RATE=rate) for rate in ("1e-4", "2e-4", "3e-4", "5e-4", "1e-3")],
    "variant": [
        alone("as it is"),
        *(
            alone(name, variant=name)
            for name in (
                *("no standard deviation", "betas 0.9 0.95", "clip 0.2", "clip 0.05", "averaged weights", "two steps a batch"),
                *("KL 0.02", "KL 0.1"),
            )
        ),
    ],
    # Easy and harder levels of five tasks all the time, or the easy ones in the first third of the rounds and then the harder.
    "curriculum": [alone("mixed levels", TASKS=LEVELS), alone("easy levels first", TASKS=LEVELS, variant="easy levels first")],
    "own": [alone(f"I {own}", own=own, rounds=rounds) for own, rounds in ((8, 240), (8, 800), (16, 400), (32, 240))],
    # The rate of every arm of the studies of knowledge. Nodes that share nothing are alone, so few of them will do.
    "rates": [
        swarm(own, external, nodes, LEARNING_RATE=rate)
        for own, external, nodes in ((8, 0, 4), (16, 0, 2), (4, 12, 4), (4, 28, 8))
        for rate in ("1e-4", "2e-4", "3e-4")
    ],
    # A node alone for long: small batches want a lower rate, or more rounds.
    "alone": [
        alone(f"I 8, linear from {rate}, {rounds} rounds", rounds, LEARNING_RATE=rate)
        for rounds in (1920, 3840)
        for rate in ("1e-4", "2e-4")
    ],
    # How far can one get? A large batch over many rounds.
    "most": [
        alone(f"I {own}, linear from {rate}, {rounds} rounds", rounds, own, LEARNING_RATE=rate)
        for own, rounds, rate in ((32, 960, "2e-4"), (64, 960, "2e-4"), (64, 960, "4e-4"), (32, 1920, "2e-4"))
    ],
    # How much of what peers write is worth reading? 84 is more than is informative in the whole window.
    "reading": [swarm(4, external, 8) for external in (4, 12, 28, 84)],
    "swarm": [swarm(8, 0, 4), swarm(4, 4, 4), swarm(4, 12, 4), swarm(16, 0, 4)],
    "demo": [
        swarm(own, external, 4, rounds, LEARNING_RATE=rate)
        for own, external, rounds in ((4, 12, 300), (8, 24, 200))
        for rate in ("1e-4", "2e-4", "3e-4")
    ],
}


@dataclass(frozen=True)
class Outcome:
    trial: str
    seed: int
    held_out: float
    in_form: float
    style_blind: float
    base_in_form: float
    questions: int
    cumulative: float
    tokens: int
    compute: int
    seconds: float


def run(trial: Trial, seed: int) -> Outcome:
    from rl_swarm.reproduce.cell import run_cell

    settings = {**NANO, "EVAL_INTERVAL": str(trial.rounds), "ROLLOUT_FETCH_MAX_PEERS": "100", **trial.settings}
    arm = Arm(trial.name, Split(trial.own, trial.external), trial.nodes)
    with watching_launcher(os.getppid(), lambda: os._exit(1)), varied(trial.variant, trial.rounds):
        result = run_cell(Cell(arm, seed, trial.rounds, settings, versions()))
    found, before = result.measures, result.before
    assert before is not None
    return Outcome(
        trial.name,
        seed,
        found["held_out"],
        found["held_out_in_form"],
        found["held_out_style_blind"],
        before.held_out_in_form,
        before.held_out_questions,
        found["cumulative"],
        found["tokens_generated"],
        found["compute"],
        result.seconds,
    )


@contextmanager
def varied(name: str, rounds: int) -> Iterator[None]:
    """Change the update in one way that no setting reaches."""
    if not name:
        yield
        return
    from rl_swarm.learning import grpo, trainer
    from rl_swarm.tasks import Tasks

    def plain_advantages(rewards_G: Any) -> Any:
        return rewards_G - rewards_G.mean()

    def by_level(tasks: Tasks, position: int) -> int:
        """The easy levels in the first third of 8 questions a round, then the others."""
        easy = {spec.id for spec in parse_tasks(TASK_PRESETS["easy"])}
        wanted = [number for number, spec in enumerate(tasks.specs) if (spec.id in easy) == (position < 8 * rounds / 3)]
        return wanted[position % len(wanted)]

    with ExitStack() as patched:
        patched.enter_context(patch("rl_swarm.node.learner.Trainer", varied_trainer(name, rounds)))
        if name == "easy levels first":
            patched.enter_context(patch.object(Tasks, "_choice", by_level))
        if name == "no standard deviation":
            patched.enter_context(patch.object(grpo, "group_advantages", plain_advantages))
        if name.startswith("clip"):
            patched.enter_context(patch.object(trainer, "MAX_GRAD_NORM", float(name.split()[1])))
        yield


def varied_trainer(name: str, rounds: int) -> type:
    """The trainer with other betas, two steps a batch, averaged weights, or a distance to the base model in its loss."""
    import torch

    from rl_swarm.learning import grpo, trainer
    from rl_swarm.learning.engine.forward import PaddedReader

    class Varied(trainer.Trainer):
        def __init__(self, policy: Any, *arguments: Any, **more: Any) -> None:
            super().__init__(policy, *arguments, **more)
            self.done, self.sums = 0, None
            if name.startswith("betas"):
                self._optimizer.param_groups[0]["betas"] = tuple(map(float, name.split()[1:]))
            self.base = PaddedReader(copy.deepcopy(policy.model), policy.temperature, policy.pad_id)

        def update(self, batch: Any, rate_share: float = 1.0) -> dict[str, float]:
            figures = super().update(batch, rate_share)
            if name == "two steps a batch" and figures["tokens_trained"]:
                figures = super().update(batch, rate_share)
            self.done += 1
            if name == "averaged weights" and self.done > 0.8 * rounds:
                self._average(self.done == rounds)
            return figures

        def _average(self, last: bool) -> None:
            with torch.no_grad():
                if self.sums is None:
                    self.sums, self.count = [torch.zeros_like(each) for each in self._parameters], 0
                for total, parameter in zip(self.sums, self._parameters, strict=True):
                    total.add_(parameter)
                self.count += 1
                if last:
                    for total, parameter in zip(self.sums, self._parameters, strict=True):
                        parameter.copy_(total / self.count)

        def _backward(self, passages: Any, reading: Any, tokens: int) -> dict[str, float]:
            """With KL: the k3 estimate of the distance to the base model, on the tokens trained on."""
            if not name.startswith("KL"):
                return super()._backward(passages, reading, tokens)
            with torch.no_grad():
                [(rows, base)] = self.base.parts(passages, 1 << 30)
            back = torch.tensor([rows.index(row) for row in range(len(rows))])
            token_loss = grpo.token_loss

            def with_distance(logprobs_BT: Any, *rest: Any) -> Any:
                gap_BT = (base.logprobs_BT[back] - logprobs_BT) * reading.mask_BT
                distance = (gap_BT.exp() - gap_BT - 1).sum() / tokens
                return token_loss(logprobs_BT, *rest) + float(name.split()[1]) * distance

            with patch.object(grpo, "token_loss", with_distance):
                return super()._backward(passages, reading, tokens)

    return Varied


def table(outcomes: Sequence[Outcome], trials: Sequence[Trial]) -> str:
    """Means over the seeds, and the worst seed; what is written and computed is that of a node, in tokens."""
    lines = [
        "| trial | seeds | held-out | worst | in the form | in any form | cumulative | written | compute | seconds |",
        "|" + "---|" * 10,
    ]
    for trial in trials:
        found = [each for each in outcomes if each.trial == trial.name]
        if found:
            shares = [fmean(getattr(each, name) for each in found) for name in ("held_out", "in_form", "style_blind")]
            worst = min(each.held_out for each in found)
            spent = [fmean(getattr(each, name) for each in found) / trial.nodes for name in ("tokens", "compute")]
            rest = f"{fmean(each.cumulative for each in found):.1f} | {spent[0]:,.0f} | {spent[1]:,.0f}"
            figures = f"{shares[0]:.1%} | {worst:.1%} | {shares[1]:.1%} | {shares[2]:.1%} | {rest}"
            lines.append(f"| {trial.name} | {len(found)} | {figures} | {fmean(each.seconds for each in found):.0f} |")
    base = next((each.base_in_form for each in outcomes), None)
    return "\n".join([*lines, f"base in the form {base:.1%}" if base is not None else ""])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=sorted(STUDIES))
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--parallel", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--output", type=Path, default=Path("docs/trials.jsonl"))
    options = parser.parse_args(arguments)
    trials = STUDIES[options.study]
    done = [Outcome(**json.loads(line)) for line in options.output.read_text().splitlines()] if options.output.exists() else []
    known = {(each.trial, each.seed) for each in done}
    jobs = [(trial, seed) for seed in PILOT_SEEDS[: options.seeds] for trial in trials if (trial.name, seed) not in known]
    os.environ.update(ONE_THREAD)
    with ProcessPoolExecutor(options.parallel, mp_context=get_context("spawn")) as pool, options.output.open("a") as file:
        for number, ready in enumerate(as_completed([pool.submit(run, *job) for job in jobs]), 1):
            done.append(ready.result())
            file.write(json.dumps(asdict(done[-1])) + "\n")
            file.flush()
            print(f"{number} of {len(jobs)}: {done[-1]}", file=sys.stderr, flush=True)
    print(table(done, trials))
    return 0


if __name__ == "__main__":
    sys.exit(main())
