"""Ask a model questions of every task and difficulty level for two minutes, and say where its rollouts are informative.

First it tries ways to prompt the model on the same few questions, and goes on with the best. It trains nothing, publishes nothing
and needs no store. It skips levels that make no questions, few questions, or prompts too long for the model, and says why. The seed
decides which questions are asked, the clock how many.
"""

import contextlib
import math
import shlex
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, fields, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.text import Text

from rl_swarm.clock import Clock
from rl_swarm.errors import ConfigError, ModelError
from rl_swarm.randomness import stream_seed
from rl_swarm.rollout import Question, Rollout
from rl_swarm.runs.measures import interval
from rl_swarm.show.tables import make_table
from rl_swarm.tasks import Tasks, TaskSpec, canonical, parsed_answer
from rl_swarm.tasks.bench import CannotMake
from rl_swarm.tasks.levels import candidates
from rl_swarm.tools.prompts import Way, plainest

if TYPE_CHECKING:
    from rl_swarm.learning.policy import Policy

BATCH = 8  # most questions asked at once
FEWEST, ENOUGH = 8, 128  # questions before which nothing is decided, and after which everything is
RARE = 0.05  # a share of informative rollouts below which learning is slow
MOST_ENTRIES, MOST_LEVELS = 8, 2  # of the TASKS value: in all, and of one task
TRIES = 8  # at a new question of a level
PROMPT_BATCHES = (2, 6, 8, 8)  # questions on which prompts are compared, as long as there is time: a slow model gets two
PROMPT_SHARE = 0.4  # of the time, for that
CPU_TOKENS = 32  # longest completion on a CPU, unless the user says: with more, little would be seen
FORMAT_REWARD = 0.1  # to recommend
PLAIN = Way()
INFORMATIVE = "Informative: completions of one question that got different rewards. Nothing is learnt from the others."


@dataclass(frozen=True)
class Tally:
    """What was seen of one candidate. All fields are sums, so tallies can be added."""

    questions: int = 0
    informative: int = 0
    completions: int = 0
    tagged: int = 0
    cut_off: int = 0
    reward: float = 0.0
    seconds: float = 0.0
    divided: int = 0  # questions whose completions have an <answer> here and none there

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(*map(sum, zip(astuple(self), astuple(other), strict=True)))

    @property
    def mean_reward(self) -> float:
        return self.reward / max(1, self.completions)

    @property
    def tagged_share(self) -> float:
        return self.tagged / max(1, self.completions)

    @property
    def informative_share(self) -> float:
        return self.informative / max(1, self.questions)

    @property
    def estimate(self) -> float:
        """The informative share with two uninformative questions added, so that one lucky question does not beat eight of ten."""
        return self.informative / (self.questions + 2)

    @property
    def promise(self) -> float:
        """The estimate, and what the form promises: after few questions most prompts have no informative rollout yet."""
        return (self.informative + self.tagged_share) / (self.questions + 2)

    @property
    def bounds(self) -> tuple[float, float]:
        return interval(self.informative_share, self.questions)


@dataclass(frozen=True)
class ProbeResult:
    """Candidates best first, those skipped with the reason, and those that time did not reach."""

    model: str
    group_size: int
    seconds: float
    seen: tuple[tuple[TaskSpec, Tally], ...]
    skipped: Mapping[str, str]
    not_reached: tuple[str, ...]
    prompts: tuple[tuple[Way, Tally], ...] = ()  # ways to prompt the model that were compared
    way: Way = PLAIN
    max_new_tokens: int | None = None  # if completions were cut so that the probe ends in time

    @property
    def settings(self) -> dict[str, str]:
        """The variables to set; none if nothing was informative, or could become so."""
        found = {**self.way.settings}
        total = self._total
        if total.informative_share < RARE <= total.divided / max(1, total.questions):
            found["FORMAT_REWARD"] = str(FORMAT_REWARD)
        if self.tasks is None:
            return found if "FORMAT_REWARD" in found else {}
        length = {} if self.max_new_tokens is None else {"MAX_NEW_TOKENS": str(self.max_new_tokens)}
        return {"TASKS": self.tasks, **found, **length}

    @property
    def _total(self) -> Tally:
        return sum((tally for _, tally in self.seen), Tally())

    @property
    def tasks(self) -> str | None:
        """The TASKS value to use; None if nothing was informative. A task file in another folder is named by its path."""
        entries = []
        for spec in choose(self.seen):
            entry = canonical([spec])
            if spec.path is not None and Path(spec.path).parent != Path.cwd():
                entry = spec.path + entry.removeprefix(spec.id)
            entries.append(entry)
        return ",".join(sorted(entries)) or None

    @property
    def advice(self) -> str:
        """What to do, in a sentence or two."""
        total = self._total
        if not total.questions:
            return "The time was over before the first question was answered: give more --seconds, or choose a smaller MODEL_NAME."
        if total.informative:
            chosen = choose(self.seen)
            these = sum((tally for spec, tally in self.seen if spec in chosen), Tally())
            fact = f"With these tasks {these.informative} of {these.questions} rollouts were informative"
            slow = f"more NUM_GENERATIONS (now {self.group_size}), easier tasks or another MODEL_NAME help"
            found = f"{fact}." if these.informative_share >= RARE else f"{fact}, so learning will be slow: {slow}."
            return found + (self._surer if these.questions < FEWEST * len(chosen) else "")
        if total.mean_reward > 0.5:
            why = "the model is nearly always right. Name harder tasks or levels"
        elif total.tagged_share >= RARE:
            why = f"the mean reward is {total.mean_reward:.3f}. Try easier tasks (TASKS=easy), another MODEL_NAME, or more "
            why += f"NUM_GENERATIONS (now {self.group_size})"
        else:
            why = f"only {total.tagged_share:.1%} of completions have an <answer>, without which no answer is read"
            if total.cut_off > total.completions / 2:
                why += (
                    f", and {total.cut_off / total.completions:.0%} were cut off. Raise MAX_NEW_TOKENS, or try another MODEL_NAME"
                )
            else:
                why += ". Try another MODEL_NAME, one tuned to follow instructions"
            if "FORMAT_REWARD" in self.settings:
                why += ". FORMAT_REWARD pays for the form until it is found"
        return f"No rollout was informative: {why}."

    @property
    def _surer(self) -> str:
        """How long to look until enough questions of every level are answered."""
        levels, pace = len(self.seen) + len(self.not_reached), self._total.seconds / self._total.questions
        seconds = math.ceil(pace * FEWEST * levels / (1 - PROMPT_SHARE) / 60) * 60
        return f" Few questions of each were asked, so that may be chance: --seconds {seconds} makes it surer."

    @property
    def view(self) -> Group:
        """The table, what is not in it, and the value to use on a line of its own that can be copied."""
        table = make_table("task and level", numbers=("questions", "reward", "informative", "<answer>", "seconds"))
        for spec, tally in self.seen:
            table.add_row(Text(f"{spec.name} {spec.id.partition(':')[2].replace(':', ' ') or 'default'}"), *_figures(tally))
        compared = make_table("prompt", numbers=("questions", "reward", "informative", "<answer>", "seconds"))
        for way, tally in self.prompts:
            compared.add_row(way.shown, *_figures(tally))
        lines = [f"skipped {key}: {reason}" for key, reason in self.skipped.items()]
        if self.not_reached:
            lines.append(f"not reached in {self.seconds:.0f} s: {', '.join(self.not_reached)}")
        lines += [INFORMATIVE, self.advice]
        if self.settings:
            lines.append("Before the first node of an experiment starts ('rl-swarm swarm', 'work' or 'coordinate'), paste:")
            lines.append(f"export {' '.join(f'{name}={shlex.quote(value)}' for name, value in self.settings.items())}")
        tables = [compared, Text(f"The levels, prompted: {self.way.shown}"), table] if self.prompts else [table]
        return Group(*tables, *(Text(line, no_wrap=True, overflow="ignore") for line in lines))

    def as_dict(self) -> dict[str, Any]:
        shares = ("mean_reward", "informative_share", "tagged_share")
        levels = [
            {"task": spec.name, "config": spec.config} | asdict(tally) | {name: getattr(tally, name) for name in shares}
            for spec, tally in self.seen
        ]
        left_out = ("seen", "prompts", "way")
        found = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in left_out}
        prompts = [asdict(way) | asdict(tally) for way, tally in self.prompts]
        return found | {
            "tasks": self.tasks,
            "settings": self.settings,
            "advice": self.advice,
            "prompts": prompts,
            "levels": levels,
        }


def _figures(tally: Tally) -> tuple[str, ...]:
    shares = (f"{tally.mean_reward:.3f}", f"{tally.informative_share:.0%}", f"{tally.tagged_share:.0%}")
    return (str(tally.questions), *shares, f"{tally.seconds:.1f}")


class Unusable(Exception):
    """A candidate is skipped, and why."""


class Family(Tasks):
    """All levels of one task, behind one helper process."""

    def __init__(self, specs: Sequence[TaskSpec], seed: int) -> None:
        super().__init__(specs, seed=seed, node_id="probe", held_out=0)  # nothing is trained: no question is forbidden

    def draw_from(self, spec: TaskSpec, known: Container[str]) -> Question:
        """Draw the next question of a level, and a new one if a few tries find one."""
        found = None
        for place in islice(self._stream(self.specs.index(spec)), TRIES):
            [item] = self._helper.items([place])
            if isinstance(item, CannotMake):
                if item.problem == "question_timeout":
                    raise Unusable("takes too long to make a question")
                continue
            found = self._question(place, item)
            if found.text_id not in known:
                return found
        if found is None:
            raise Unusable(f"made no question in {TRIES} tries")
        return found


def load_family(specs: Sequence[TaskSpec], seed: int) -> dict[str, Family | Unusable]:
    """Load all levels in one family or, if one of them is refused, each by itself."""
    try:
        return dict.fromkeys((spec.id for spec in specs), Family(specs, seed))
    except ConfigError as error:
        if len(specs) == 1:
            return {specs[0].id: Unusable(str(error))}
    return {key: family for spec in specs for key, family in load_family([spec], seed).items()}


def next_batch(tallies: Mapping[str, Tally], seconds_left: float) -> tuple[str, int] | None:
    """Choose a candidate and how many questions to ask; None when the time is up or everything is decided.

    The undecided take turns. A batch takes at most half of the time left for each of them, so a slow model gets single questions
    and a fast one eight at once. The first batch is one question, to measure the model's pace.
    """
    waiting = undecided(tallies)
    if not waiting or seconds_left <= 0:
        return None
    key = min(waiting, key=lambda each: tallies[each].questions)
    asked = tallies[key] if tallies[key].questions else sum(tallies.values(), Tally())
    if not asked.questions:
        return key, 1
    pace = max(asked.seconds / asked.questions, 1e-6)
    if pace > seconds_left:
        return None
    return key, max(1, min(BATCH, int(seconds_left / (2 * len(waiting)) / pace)))


def undecided(tallies: Mapping[str, Tally]) -> list[str]:
    """List candidates that may lie on either side of the bar for being chosen: half of the best share, and at least `RARE`."""
    bar = max(RARE, max((tally.estimate for tally in tallies.values()), default=0.0) / 2)
    return [
        key
        for key, tally in tallies.items()
        if tally.questions < FEWEST or (tally.questions < ENOUGH and tally.bounds[0] <= bar <= tally.bounds[1])
    ]


class Probe:
    """Ask a model about the named tasks and their levels. Tallies grow as it goes, so an interrupted probe reports what it has."""

    def __init__(self, named: Sequence[TaskSpec], policy: "Policy", *, group_size: int, seed: int, clock: Clock) -> None:
        self._named = {spec.id for spec in named}
        self._specs = {spec.id: spec for spec in candidates(named)}
        self._policy, self._group_size, self._seed, self._clock = policy, group_size, seed, clock
        self._families: dict[str, Family | Unusable] = {}
        self._known: dict[str, set[str]] = {key: set() for key in self._specs}
        self._tallies = {key: Tally() for key in self._specs}
        self._skipped: dict[str, str] = {}
        self._prompts: dict[Way, Tally] = {}
        self._way = PLAIN

    def choose_prompt(self, ways: Mapping[Way, "Policy"], seconds: float, show: Callable[[Text], None] = lambda line: None) -> None:
        """Ask the same questions behind every prompt, and go on with the plainest that is nearly as good as the best.

        Takes at most so many seconds at the pace so far. Only the first questions are asked however long they take.
        """
        began, done = self._clock.monotonic(), 0
        usable = dict(ways)
        for batch, count in enumerate(PROMPT_BATCHES):
            if done and (self._clock.monotonic() - began) * (done + count) / done > seconds:
                break
            asked = self._sample(count, done)
            done += len(asked)
            for way in list(usable):
                show(Text(f"comparing prompts, now {way.shown}"))
                if not all(usable[way].fits(question) for _, question in asked):
                    del usable[way]  # and its tally: it was asked other questions than the rest
                    self._prompts.pop(way, None)
                    continue
                seed = stream_seed("prompts", self._seed, batch)
                self._prompts[way] = self._prompts.get(way, Tally()) + self._answered(usable[way], asked, seed)
        if self._prompts:
            self._way = plainest({way: tally.promise for way, tally in self._prompts.items()})
            self._policy = usable[self._way]

    def _sample(self, count: int, first: int) -> list[tuple[Family, Question]]:
        """Questions of one level after the other, easy ones among them, beginning with the level at place `first`."""
        keys, asked = list(self._tallies), list[tuple[Family, Question]]()
        for place in range(first, first + len(keys)):
            key = keys[place % len(keys)]
            with contextlib.suppress(Unusable):  # which is said when its turn comes
                family = self._family(key)
                asked.append((family, self._draw(key, family)))
            if len(asked) == count:
                break
        return asked

    def run(self, seconds: float, show: Callable[[Text], None] = lambda line: None) -> ProbeResult:
        """Ask for so many seconds, or until everything is decided. Ctrl-C ends it early. `show` gets a line about each batch."""
        began = self._clock.monotonic()
        ends = began + seconds
        try:
            while (batch := next_batch(self._tallies, ends - self._clock.monotonic())) is not None:
                seen = sum(tally.questions > 0 for tally in self._tallies.values())
                left = ends - self._clock.monotonic()
                show(Text(f"{left:.0f} s left, {seen} of {len(self._tallies)} levels seen, now {batch[0]}"))
                self._look(*batch)
        except KeyboardInterrupt:
            pass
        finally:
            self._families.clear()  # ends their helpers
        if not self._tallies:
            raise ConfigError(f"none of the TASKS can be used ({next(iter(self._skipped.values()))}): name others")
        found = ranked((self._specs[key], tally) for key, tally in self._tallies.items() if tally.questions)
        unseen = tuple(key for key, tally in self._tallies.items() if not tally.questions)
        taken = self._clock.monotonic() - began
        compared = tuple(self._prompts.items())
        return ProbeResult(self._policy.name, self._group_size, taken, tuple(found), self._skipped, unseen, compared, self._way)

    def _look(self, key: str, count: int) -> None:
        try:
            self._tallies[key] += self._ask(key, count)
        except (Unusable, ModelError) as reason:  # a prompt may be too long for the memory, too
            del self._tallies[key]
            self._skipped[key] = str(reason)

    def _ask(self, key: str, count: int) -> Tally:
        family = self._family(key)
        seed = stream_seed("probe", self._seed, key, self._tallies[key].questions)
        return self._answered(self._policy, [(family, self._draw(key, family)) for _ in range(count)], seed)

    def _answered(self, policy: "Policy", asked: Sequence[tuple[Family, Question]], seed: int) -> Tally:
        began, seen = self._clock.monotonic(), Tally()
        groups = policy.answer([question for _, question in asked], self._group_size, seed)
        for (family, question), answers in zip(asked, groups, strict=True):
            scores = family.score_all(question, [answer.text for answer in answers])
            scored = tuple(replace(answer, reward=score) for answer, score in zip(answers, scores, strict=True))
            seen += tally_of(Rollout(question, scored, "probe", 0))
        return seen + Tally(seconds=self._clock.monotonic() - began)

    def _family(self, key: str) -> Family:
        """Return the family of a candidate; load it when the first of its levels is asked for."""
        if key not in self._families:
            name = self._specs[key].name
            self._families |= load_family([spec for spec in self._specs.values() if spec.name == name], self._seed)
        family = self._families[key]
        if isinstance(family, Unusable):
            raise family
        return family

    def _draw(self, key: str, family: Family) -> Question:
        question, known = family.draw_from(self._specs[key], self._known[key]), self._known[key]
        if not self._policy.fits(question):
            raise Unusable("makes a prompt that leaves no room for MAX_NEW_TOKENS in the model's context")
        if question.text_id in known and key not in self._named:  # a user may choose a small task; it is never advised
            raise Unusable(f"makes few questions: {len(known)} and then the same again")
        known.add(question.text_id)
        return question


def tally_of(rollout: Rollout) -> Tally:
    done = rollout.completions
    tagged = sum(parsed_answer(each.text) is not None for each in done)
    return Tally(
        questions=1,
        informative=int(rollout.informative),
        completions=len(done),
        tagged=tagged,
        divided=int(0 < tagged < len(done)),
        cut_off=sum(each.finish == "length" for each in done),
        reward=sum(rollout.rewards),
    )


def ranked(seen: Iterable[tuple[TaskSpec, Tally]]) -> list[tuple[TaskSpec, Tally]]:
    """Sort by what is informative, then by what comes nearest to a reward."""
    return sorted(seen, key=lambda each: (-each[1].estimate, -each[1].mean_reward, -each[1].tagged_share, each[0].id))


def choose(seen: Sequence[tuple[TaskSpec, Tally]]) -> list[TaskSpec]:
    """Choose the candidates at least half as good as the best, at most two levels of a task and eight in all."""
    rows = ranked(seen)
    chosen: list[TaskSpec] = []
    for spec, tally in rows:
        good = tally.informative > 0 and tally.estimate >= rows[0][1].estimate / 2
        if good and sum(other.name == spec.name for other in chosen) < MOST_LEVELS:
            chosen.append(spec)
    return chosen[:MOST_ENTRIES]
