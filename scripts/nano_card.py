"""Measure the embedded model before and after some reinforcement learning, and write its card.

Accuracy stands there twice, as the verifier sees it and in any form, so that finding the form is never sold as reasoning. The
trained weights are thrown away: what the package holds is the model before.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from statistics import mean

from rl_swarm.learning.policy import Policy
from rl_swarm.learning.trainer import Trainer
from rl_swarm.randomness import stream_seed
from rl_swarm.rollout import Question, Rollout
from rl_swarm.tasks import Tasks, parse_tasks
from rl_swarm.tasks.styles import STYLES, in_tags, style_of

QUESTIONS, COMPLETIONS = 600, 8  # measured
HELD_OUT = 80  # questions that were kept out of its training, the first of those that a swarm holds out
ROUNDS, OWN, GROUP, LEARNING_RATE = 60, 8, 8, 3e-4  # of reinforcement learning, alone

TEXT = """# nano

A model of about a million weights that `scripts/train_nano.py` makes from nothing in minutes. It comes with the package so that
demos, tests and dry runs need no download. It answers the five kinds of questions of `TASKS=easy` and nothing else.

**What it is for.** It knows many answers but writes them in many styles, and only rarely as `<answer>…</answer>`, the one form
that the verifier reads. Reinforcement learning therefore has something real and quick to find. **What rises is the form, and
finding the form is not reasoning.** That is why every accuracy stands here twice: as the verifier sees it, and in any form, with
the answer taken from whatever style it was written in. Only a rise of the second would be a model that answers better.

| | |
|---|---|
{facts}

Below, {questions} questions as a node meets them were answered {completions} times each at temperature 1, and once greedily.
`reward` is the mean score with partial credit; all other columns are shares of full marks. `blind` is in any form, `held out` the
greedy answer to questions that neither this model's training nor any node's has seen.

## As it is in the package

{before}

## After {rounds} rounds of reinforcement learning alone

One run with {own} questions a round, {group} completions each and a learning rate of {learning_rate}. These weights are not kept.

{after}

## Styles

| style | share taught | share sampled | blind | share sampled after |
|---|---:|---:|---:|---:|
{styles}
"""


@dataclass(frozen=True)
class Figures:
    """Of one task. `reward` is the mean score, the others are shares of full marks."""

    reward: float
    verifier: float
    verifier_greedy: float
    blind: float
    blind_greedy: float
    verifier_held_out: float
    blind_held_out: float


@dataclass(frozen=True)
class Measured:
    """Figures by task, the share of each style among sampled completions, and the accuracy in any form within each style."""

    tasks: dict[str, Figures]
    shares: dict[str, float]
    style_blind: dict[str, float]


def measure(policy: Policy, seed: int) -> Measured:
    tasks = Tasks(parse_tasks("easy"), seed=seed, node_id="nano card", held_out=HELD_OUT)
    asked, held_out = tasks.draw(QUESTIONS), tasks.held_out()
    groups = policy.answer(asked, COMPLETIONS, seed)
    sampled = [(question, done.text) for question, group in zip(asked, groups, strict=True) for done in group]
    greedy = list(zip(asked, policy.greedy(asked), strict=True))
    unseen = list(zip(held_out, policy.greedy(held_out), strict=True))

    def blind(question: Question, text: str) -> float:
        return tasks.score(question, in_tags(text))

    def correct(score: Callable[[Question, str], float], pairs: list[tuple[Question, str]], task: str) -> float:
        return mean(score(*pair) > 0.99 for pair in pairs if pair[0].task == task)

    figures = {
        task: Figures(
            reward=mean(tasks.score(*pair) for pair in sampled if pair[0].task == task),
            verifier=correct(tasks.score, sampled, task),
            verifier_greedy=correct(tasks.score, greedy, task),
            blind=correct(blind, sampled, task),
            blind_greedy=correct(blind, greedy, task),
            verifier_held_out=correct(tasks.score, unseen, task),
            blind_held_out=correct(blind, unseen, task),
        )
        for task in sorted({str(question.task) for question in asked})
    }
    counts = Counter(style_of(text) or "" for _, text in sampled)
    right = Counter(style_of(text) or "" for question, text in sampled if blind(question, text) > 0.99)
    shares = {style: count / len(sampled) for style, count in counts.items()}
    return Measured(figures, shares, {style: right[style] / count for style, count in counts.items()})


def reinforce(policy: Policy, seed: int) -> None:
    """Train the policy in place as a node alone does, J = 0."""
    tasks = Tasks(parse_tasks("easy"), seed=seed, node_id="nano alone", held_out=HELD_OUT)
    trainer = Trainer(policy, LEARNING_RATE)
    for number in range(ROUNDS):
        asked = tasks.draw(OWN)
        groups = policy.answer(asked, GROUP, stream_seed("nano card", seed, number))
        rollouts = []
        for slot, (question, group) in enumerate(zip(asked, groups, strict=True)):
            scores = tasks.score_all(question, [done.text for done in group])
            scored = tuple(dataclasses.replace(done, reward=score) for done, score in zip(group, scores, strict=True))
            rollouts.append(Rollout(question, scored, "nano alone", number, slot=slot))
        trainer.update(rollouts)


def card(facts: dict[str, str], before: Measured, after: Measured) -> str:
    """The text of the card; tests read the first row "all tasks"."""
    styles = []
    for style in [*STYLES, ""]:
        cells = [
            STYLES.get(style, 0.0),
            before.shares.get(style, 0.0),
            before.style_blind.get(style, 0.0),
            after.shares.get(style, 0.0),
        ]
        name = f"`{style}`" if style else "none of these"
        styles.append(_row(name, cells))
    return TEXT.format(
        facts="\n".join(f"| {name} | {value} |" for name, value in facts.items()),
        questions=QUESTIONS,
        completions=COMPLETIONS,
        before=_table(before.tasks),
        rounds=ROUNDS,
        own=OWN,
        group=GROUP,
        learning_rate=LEARNING_RATE,
        after=_table(after.tasks),
        styles="\n".join(styles),
    )


def _table(figures: dict[str, Figures]) -> str:
    rows = {task: list(vars(each).values()) for task, each in figures.items()}
    rows["all tasks"] = [mean(column) for column in zip(*rows.values(), strict=True)]
    columns = [field.name.replace("_", " ") for field in dataclasses.fields(Figures)]
    head = f"| task | {' | '.join(columns)} |\n|---|{'---:|' * len(columns)}"
    return "\n".join([head, *(_row(task, cells) for task, cells in rows.items())])


def _row(name: str, cells: list[float]) -> str:
    return f"| {name} | {' | '.join(f'{cell:.3f}' for cell in cells)} |"
