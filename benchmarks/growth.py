"""How a round of nano grows with I, J, G and the length of prompts, each varied alone around 8 × 8 completions of 24 tokens.

Writes bench-results/growth.json. Times are of one thread, medians over a few rounds, and are compared within this run only.
"""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch

from benchmarks.work import Work, prompts, rewards
from rl_swarm.learning.models import load
from rl_swarm.learning.policy import Policy
from rl_swarm.learning.trainer import Trainer
from rl_swarm.rollout import Question, Rollout

BASE = Work("nano", 8, 8, 60, 24)
VARIED = {
    "questions (I)": [replace(BASE, questions=count) for count in (4, 8, 16, 32)],
    "completions a question (G)": [replace(BASE, group_size=count) for count in (4, 8, 16, 32)],
    "prompt tokens": [replace(BASE, prompt_tokens=count) for count in (30, 60, 120, 240)],
}
EXTERNAL = (0, 4, 8, 16)


def measure(work: Work, external: int, repeats: int) -> dict[str, float]:
    loaded = load(work.model, cpu_only=True)
    policy = Policy(loaded.model, loaded.tokenizer, max_new_tokens=work.new_tokens)
    policy._sampler = replace(policy._sampler, end_ids=frozenset())
    trainer = Trainer(policy, learning_rate=1e-5)
    bare = replace(work, prompt_tokens=max(1, work.prompt_tokens - len(policy.prompt_ids(""))))  # the template counts too
    questions = [Question(text) for text in prompts(bare, policy.tokenizer, work.questions + external)]
    scores = iter(rewards((repeats + 1) * (work.questions + external) * work.group_size, 0))

    def answered(asked: list[Question], node_id: str, step: int) -> list[Rollout]:
        groups = policy.answer(asked, work.group_size, step)
        return [
            Rollout(question, tuple(replace(done, reward=next(scores)) for done in group), node_id, step, slot=slot)
            for slot, (question, group) in enumerate(zip(asked, groups, strict=True))
        ]

    generate, update = [], []
    for step in range(repeats + 1):
        others = answered(questions[work.questions :], "peer", step)
        others = [
            replace(rollout, completions=tuple(replace(done, token_ids=()) for done in rollout.completions)) for rollout in others
        ]
        began = time.perf_counter()
        own = answered(questions[: work.questions], "me", step)
        generated = time.perf_counter()
        trainer.update(own + others)
        if step:  # the first warms up
            generate.append(generated - began)
            update.append(time.perf_counter() - generated)
    return {"generate": median(generate), "update": median(update), "seconds": median(map(sum, zip(generate, update, strict=True)))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("bench-results/growth.json"))
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, dict[str, dict[str, float]]] = {}
    for name, works in VARIED.items():
        keys = {"questions (I)": "questions", "completions a question (G)": "group_size", "prompt tokens": "prompt_tokens"}
        results[name] = {str(getattr(work, keys[name])): measure(work, 0, options.repeats) for work in works}
    results["external rollouts (J)"] = {str(count): measure(BASE, count, options.repeats) for count in EXTERNAL}
    for name, rows in results.items():
        first = next(iter(rows.values()))["seconds"]
        print(
            name
            + ": "
            + ", ".join(f"{value}: {row['seconds']:.3f} s (× {row['seconds'] / first:.2f})" for value, row in rows.items())
        )
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
