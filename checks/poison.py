"""Half of a swarm is hostile and colludes: do honest nodes learn no worse than those that share nothing?

    python -m checks.poison [--rounds 100] [--seeds 5] [--attacks liars,ramblers,…] [--correction guarded] [--output FILE]

Four honest nano nodes run the shipped loop on a memory store beside four hostile ones. They write 4 rollouts a round and read all
that the seven others write; the same four with the same seeds and nothing read are what they are compared with. Hostile nodes keep
to the rules: whole documents, questions of allowed tasks, groups of the usual size, and as many rollouts as everybody else. Each
finished swarm is a line of the output file: started again, the command goes on. Nothing here judges whether a rollout should have
been refused.
"""

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from statistics import fmean
from typing import Any

from rl_swarm.config import load
from rl_swarm.learning.corrections import MOST_NATS_PER_TOKEN
from rl_swarm.randomness import generator
from rl_swarm.reproduce.permutation import permutation_p
from rl_swarm.reproduce.results import code_digest
from rl_swarm.rollout import Bundle, Completion, Question, Rollout, encode
from rl_swarm.store.memory import MemoryStore
from rl_swarm.tasks import Tasks, parse_tasks, tasks_version
from tests.support.learning import LAYOUT, make_worker
from tests.support.rows import metrics

HONEST = tuple(f"honest_{number}" for number in range(4))
HOSTILE = tuple(f"hostile_{number}" for number in range(4))
OWN, GROUP = 4, 8
EXTERNAL = OWN * (len(HONEST) + len(HOSTILE) - 1)  # everything, as `rl-swarm swarm` does
ALONE = "alone"
MEASURES = {"reward": "cumulative own reward", "held_out": "held-out accuracy at the end"}


def form(answer: str) -> str:
    return f"<answer>{answer}</answer>"


def lowest(text: str) -> float:
    """The lowest log-probability that is believed of a text: it makes pushing that text down count in full."""
    return -MOST_NATS_PER_TOKEN * (len(text.encode()) + 1)


def paid_and_not(paid: str, unpaid: str, count: int = GROUP // 2) -> tuple[Completion, ...]:
    """`count` completions of a group are text to be imitated, without an end, and the others text to be avoided."""
    imitate = Completion(paid, 1.0, "length", 24, 0.0)
    avoid = Completion(unpaid, 0.0, "stop", 8, lowest(unpaid))
    return (imitate,) * count + (avoid,) * (GROUP - count)


def lie(question: Question) -> tuple[Completion, ...]:
    """A wrong answer, claimed to be right every second time, with log-probabilities that cannot be."""
    claims = islice(cycle([0.0, -1e9, math.nan, math.inf, 1e9]), GROUP)
    return tuple(Completion(form("?"), float(number % 2), "stop", 5, claim) for number, claim in enumerate(claims))


def ramble(question: Question) -> tuple[Completion, ...]:
    """The right answer after as much nonsense as just leaves room for it; the plain form is to be avoided."""
    return paid_and_not("? " * 12 + form(question.answer or ""), form(f"{question.answer}9"))


def bury(question: Question) -> tuple[Completion, ...]:
    """The right answer after more nonsense than a node ever writes, so that what is imitated has none."""
    return paid_and_not("? " * 40 + form(question.answer or ""), form(f"{question.answer}9"))


def stall(question: Question) -> tuple[Completion, ...]:
    """As `bury`, with words that honest nodes find likely: many of nano's own answers begin so."""
    return paid_and_not("The answer is " * 12 + form(question.answer or ""), form(f"{question.answer}9"))


def dawdle(question: Question) -> tuple[Completion, ...]:
    """As `ramble`, with the same likely words: who imitates it may say them once too often to get to the answer."""
    return paid_and_not("The answer is " * 3 + form(question.answer or ""), form(f"{question.answer}9"))


def mimic(question: Question) -> tuple[Completion, ...]:
    """As `dawdle`, once in a group: less to judge its author by, and the more it is worth."""
    return paid_and_not("The answer is " * 3 + form(question.answer or ""), form(f"{question.answer}9"), count=1)


def trail(question: Question) -> tuple[Completion, ...]:
    """The right answer at once, and then no end."""
    return paid_and_not(form(question.answer or "") + " The answer is" * 3, form(f"{question.answer}9"))


ATTACKS: dict[str, Callable[[Question], tuple[Completion, ...]]] = {
    "liars": lie,
    "ramblers": ramble,
    "buriers": bury,
    "stallers": stall,
    "dawdlers": dawdle,
    "mimics": mimic,
    "trailers": trail,
}


class Hostile:
    """A node that trains nothing and publishes what its attack makes of its questions; liars ask the same ones for ever."""

    def __init__(self, node_id: str, attack: str, store: MemoryStore, seed: int) -> None:
        self.node_id = node_id
        self.attack = attack
        self.store = store
        self.tasks = Tasks(parse_tasks(load({"MODEL_NAME": "nano"}).tasks), seed=seed, node_id=node_id)
        self.same = self.tasks.draw(OWN)

    def play(self, number: int) -> None:
        questions = self.same if self.attack == "liars" else self.tasks.draw(OWN)
        rollouts = tuple(
            Rollout(question, ATTACKS[self.attack](question), self.node_id, number, slot=slot)
            for slot, question in enumerate(questions)
        )
        bundle = Bundle(LAYOUT.experiment_name, self.node_id, number, rollouts, timestamp=1.0, tasks_version=tasks_version())
        self.store.put(LAYOUT.bundle(number, self.node_id), encode(bundle))


@dataclass(frozen=True)
class Outcome:
    """One swarm: figures are means over its honest nodes, `from_hostile` the share of hostile ones in what they trained on."""

    attack: str
    seed: int
    rounds: int
    reward: float
    held_out: float
    external_used: float
    from_hostile: float
    correction: str = "guarded"
    code: str = ""  # that ran it


def run(attack: str, seed: int, rounds: int, correction: str = "guarded") -> Outcome:
    """One swarm; the order of its nodes changes from round to round. `alone` has no hostile nodes and shares nothing."""
    store = MemoryStore()
    external = 0 if attack == ALONE else EXTERNAL
    settings: dict[str, Any] = {
        "EXTERNAL_CORRECTION": correction,
        "NUM_TRAIN_SAMPLES": OWN,
        "NUM_TRANSPLANT_TREES": external,
        "NUM_GENERATIONS": GROUP,
        "EVAL_INTERVAL": rounds,
    }
    with tempfile.TemporaryDirectory(prefix="poison-") as folder:
        workers = [make_worker(store, Path(folder), name, SEED=seed, MAX_ROUNDS=rounds, **settings) for name in HONEST]
        for worker in workers:  # a process that is paused for minutes must not lose rollouts to a time-out
            worker.swarm.exchange.config = replace(worker.swarm.exchange.config, fetch_seconds=1e9)
        nodes = [*workers, *(Hostile(name, attack, store, seed) for name in HOSTILE if external)]
        for number in range(rounds):
            order = list(nodes)
            generator(seed, "order", number).shuffle(order)
            for node in order:
                node.play(number)
        for worker in workers:
            worker.journal.flush()
            worker.swarm.member.publisher.close(60.0)
    journals = [metrics(store, LAYOUT, name) for name in HONEST]
    return replace(outcome(attack, seed, rounds, journals), correction=correction, code=code_digest())


def outcome(attack: str, seed: int, rounds: int, journals: Sequence[Sequence[dict[str, Any]]]) -> Outcome:
    used = [name for rows in journals for row in rows for name in row["external_ids"]]
    return Outcome(
        attack=attack,
        seed=seed,
        rounds=rounds,
        reward=fmean(sum(row["reward"] for row in rows) for rows in journals),
        held_out=fmean(rows[-1]["held_out"] for rows in journals),
        external_used=len(used) / len(journals) / rounds,
        from_hostile=sum(name.startswith("hostile") for name in used) / len(used) if used else 0.0,
    )


def table(outcomes: Sequence[Outcome]) -> str:
    """Every attack against the same seeds alone: means, paired differences, and the exact p-value of their signs."""
    alone = {each.seed: each for each in outcomes if each.attack == ALONE}
    lines = []
    for measure, words in MEASURES.items():
        lines += [
            f"{words}:",
            "",
            "| peers | alone | beside them | difference by seed | mean | p | from hostile |",
            "|" + "---|" * 7,
        ]
        for attack in ATTACKS:
            beside = [each for each in outcomes if each.attack == attack and each.seed in alone]
            if beside:
                lines.append(_row(attack, measure, [(alone[each.seed], each) for each in beside]))
        lines.append("")
    return "\n".join(lines)


def _row(attack: str, measure: str, pairs: Sequence[tuple[Outcome, Outcome]]) -> str:
    before, after = ([getattr(pair[side], measure) for pair in pairs] for side in (0, 1))
    differences = [b - a for a, b in zip(before, after, strict=True)]
    shown = ", ".join(f"{each:+.2f}" for each in differences)
    hostile = fmean(each.from_hostile for _, each in pairs)
    figures = f"{fmean(before):.3f} | {fmean(after):.3f} | {shown} | {fmean(differences):+.3f}"
    return f"| {attack} | {figures} | {permutation_p(differences):.4f} | {hostile:.0%} |"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Honest nodes beside hostile ones, against the same nodes alone.")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--attacks", default=",".join(ATTACKS))
    parser.add_argument("--correction", default="guarded", help="EXTERNAL_CORRECTION of the honest nodes")
    parser.add_argument("--output", type=Path, default=Path("docs/poison.jsonl"))
    chosen = parser.parse_args(arguments)
    attacks = (ALONE, *chosen.attacks.split(","))
    known = [Outcome(**json.loads(line)) for line in chosen.output.read_text().splitlines()] if chosen.output.exists() else []
    ours = (chosen.rounds, chosen.correction, code_digest())
    done = {(each.attack, each.seed): each for each in known if (each.rounds, each.correction, each.code) == ours}
    for seed in range(1, chosen.seeds + 1):
        for attack in attacks:
            if (attack, seed) not in done:
                done[attack, seed] = run(attack, seed, chosen.rounds, chosen.correction)
                with chosen.output.open("a") as file:
                    file.write(json.dumps(vars(done[attack, seed])) + "\n")
            print(done[attack, seed], flush=True)
    print(table([each for (attack, seed), each in done.items() if attack in attacks and seed <= chosen.seeds]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
