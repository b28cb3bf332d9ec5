"""What must hold in every simulated run, whatever the drive did.

A `Witness` looks over the shoulder of every node and knows what truly lies in the cloud. It judges a node only by what the node
was told: a gather that was lied to may come back short, one that was not may not. It never helps a node, and never looks away.

    rounds      a node's rounds only rise, follow what was announced, and never pass the last; nobody announces twice or rewinds
    rewards     what was submitted is in the store once, as it was submitted; nothing else is
    handed_over every document that the spool accepted is in the store, whole
    heard       what lies in the window is found by who looks for it, or that it was not is reported
    twice       no weights contain an external rollout twice, or one round twice
    waiting     no node waits longer than its patience, and none for ever; a round is closed at the first look that comes an
                interval after its first reward was seen, whoever is missing
    held_up     after its first reward no round is kept open for a worker that is later than its usual time by as much again on the
                coordinator's clock, or that has never submitted; the first round of a run waits for those as long again as its
                first worker took
    resumed     a node that comes back is what its newest checkpoint says it was
    achieved    the journal says exactly what was trained on
    retention   nothing is removed that the window of a node which is alive still needs; a document says which rounds may be gone;
                only authors and coordinators remove; what is to be archived is in the archive, whole and in its place
    chance      randomness is keyed on seed, node and round: the same again after a restart, another everywhere else
    outcome     'complete' means that the last round was done; a bug of our own ends the process
"""

import json
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from rl_swarm.document import unseal
from rl_swarm.errors import BadDocument
from rl_swarm.node.coordinator import Coordinator
from rl_swarm.node.worker import Worker
from rl_swarm.rollout import Rollout, decode
from rl_swarm.runs.record import Round
from rl_swarm.swarm.layout import Layout, node_of_file, recognised, round_of_file
from rl_swarm.swarm.pace import PATIENCE_INTERVALS
from rl_swarm.swarm.peers import Heartbeat, has_left
from rl_swarm.swarm.retention import SILENT_INTERVALS
from rl_swarm.swarm.rounds import Announcement, Reward
from tests.sim.baton import Baton
from tests.sim.drive_from_hell import Cloud, DriveFromHell
from tests.support.rows import metrics

if TYPE_CHECKING:
    from tests.sim.simulation import Scenario

INVARIANTS = (
    "rounds",
    "rewards",
    "handed_over",
    "heard",
    "twice",
    "waiting",
    "held_up",
    "resumed",
    "achieved",
    "retention",
    "chance",
    "outcome",
)
LOOK_SECONDS = 12.0  # the longest that one look for the next round takes when the store answers nothing, all retries included


@dataclass
class Life:
    """One process of a node, as the witness saw it."""

    node_id: str
    number: int
    born: float = 0.0
    playing: int | None = None
    last: int = -1
    began_at: int | None = None
    recorded: bool = True
    opened: int = -1
    first_reward: float | None = None  # when a coordinator first saw one for the round that it keeps open
    overdue: bool = False
    openings: dict[int, float] = field(default_factory=dict)  # round → when a coordinator began to keep it open
    noticed: dict[str, list[tuple[float, int, bool]]] = field(default_factory=dict)  # worker → when it saw which rewards, timed?
    frozen: float = 0.0
    killed: bool = False
    rows: list[Round] = field(default_factory=list)


class Witness:
    def __init__(
        self, scenario: "Scenario", layout: Layout, baton: Baton, cloud: Cloud, interval: float, note: Callable[[str, str], None]
    ) -> None:
        self.scenario = scenario
        self.layout = layout
        self.baton = baton
        self.cloud = cloud
        self.interval = interval
        self.note = note
        self.violations: list[str] = []
        self.checks: Counter[str] = Counter()
        self.lives: dict[str, list[Life]] = {}
        self.handed_over: dict[str, set[bytes]] = {}
        self.weights: dict[str, Any] = {}  # node → the trainer of its newest life
        self.played: list[tuple[float, str, int]] = []  # when who began which round
        self.done: dict[tuple[str, int], float] = {}  # when who had first done which round
        self._doomed: set[str] = set()
        self._looks: list[
            tuple[float, str, bool]
        ] = []  # when who looked for what may be removed, and whether it was told the truth
        self._chance: dict[tuple[str, str, int], int] = {}
        self._rollouts: dict[bytes, list[str]] = {}

    def check(self, invariant: str, holds: bool, node_id: str, what: str) -> None:
        self.checks[invariant] += 1
        if not holds:
            self.violations.append(f"{invariant}: {node_id} at {self.baton.now:.1f} s: {what}")
            self.note(node_id, f"VIOLATION {invariant}: {what}")

    # While it runs: workers

    def watch_worker(self, worker: Worker, store: DriveFromHell, number: int) -> None:
        node_id = worker.config.node_id
        life = Life(node_id, number)
        self.lives.setdefault(node_id, []).append(life)
        self.weights[node_id] = worker.trainer
        _wrap(worker, "play", lambda play, round_number: self._playing(life, worker, play, round_number))
        _wrap(worker.swarm.exchange, "gather", lambda gather, *rest: self._gathering(life, worker, store, gather, *rest))
        _wrap(worker.trainer, "update", lambda update, *rest: self._training(life, worker, update, *rest))
        _wrap(worker.policy, "answer", lambda answer, *rest: self._sampling(life, answer, *rest))
        _wrap(worker.swarm.member.publisher, "put", lambda put, name, data: self._putting(life, put, name, data))
        _wrap(worker.journal, "round_done", lambda done, row: self._recording(life, worker, done, row))
        _wrap(worker.swarm.member.retention, "removable", lambda look, newest: self._looking_for_old(life, store, look, newest))
        _wrap(worker.swarm.pace, "following", lambda following, *rest: self._following(life, worker, following, *rest))

    def _playing(self, life: Life, worker: Worker, play: Callable[[int], None], number: int) -> None:
        self.check("rounds", number > life.last, life.node_id, f"round {number} after {life.last}")
        self.check("rounds", number < self.scenario.rounds, life.node_id, f"round {number} of {self.scenario.rounds}")
        self.check(
            "outcome", life.recorded, life.node_id, f"round {life.last} was begun and never recorded, yet round {number} follows"
        )
        if life.began_at is None:
            life.began_at = number
            self._resuming(life, worker, number)
        self.note(life.node_id, f"plays round {number}")
        life.playing, life.last, life.recorded = number, number, False
        self.played.append((self.baton.now, life.node_id, number))
        play(number)
        life.playing = None
        self.done.setdefault((life.node_id, number), self.baton.now)

    def _resuming(self, life: Life, worker: Worker, number: int) -> None:
        saved: str | None = worker.checkpoints.saved  # type: ignore[attr-defined]
        if saved is not None:
            saved_round, node_state, trainer_state = json.loads(saved)
            self.check(
                "resumed", worker.trainer.state() == trainer_state, life.node_id, "its weights are not those of its checkpoint"
            )
            self.check(
                "resumed", worker.swarm.state()["used"] == node_state["swarm"]["used"], life.node_id, "it forgot what it used"
            )
            self.check(
                "rounds", number >= saved_round, life.node_id, f"starts with round {number}, its checkpoint is of {saved_round}"
            )

    def _sampling(self, life: Life, answer: Callable[..., Any], questions: Any, group_size: int, seed: int) -> Any:
        assert life.playing is not None
        self._keyed("answers", life, seed)
        self._keyed("questions", life, hash(tuple((question.seed, question.index) for question in questions)))
        return answer(questions, group_size, seed)

    def _keyed(self, purpose: str, life: Life, seed: int) -> None:
        """The same for a round that is done again, and never for another. (Questions may come later when rounds were left out.)"""
        assert life.playing is not None
        others = self._chance
        mine = (purpose, life.node_id, life.playing)
        if purpose != "questions":
            self.check(
                "chance", others.get(mine, seed) == seed, life.node_id, f"{purpose} of round {life.playing} differ when repeated"
            )
        clash = [who for who, taken in others.items() if taken == seed and who[0] == purpose and who != mine]
        clash = [who for who in clash if purpose != "questions" or who[1] != life.node_id]
        self.check("chance", not clash, life.node_id, f"{purpose} of round {life.playing} are those of {clash[:1]}")
        others[mine] = seed

    def _gathering(
        self,
        life: Life,
        worker: Worker,
        store: DriveFromHell,
        gather: Callable[..., list[Rollout]],
        number: int,
        stage: int,
        wanted: int,
        chooser: Any,
    ) -> list[Rollout]:
        self._keyed("choices", life, hash(chooser.getstate()))
        lies, began, used = store.lies, self.baton.now, {name for batch in worker.trainer.batches for name in batch}  # type: ignore[attr-defined]
        there = self._in_window(life.node_id, number, began) if wanted else {}
        found = gather(number, stage, wanted, chooser)
        window = range(number - self.scenario.window + 1, number + 1)
        for rollout in found:
            self.check(
                "heard", rollout.node_id != life.node_id and rollout.round in window, life.node_id, f"{rollout.id} in {number}"
            )
        # A torn file of the same name may come into sight while the node looks, and be the one that it reads.
        still = self._in_window(life.node_id, number, self.baton.now) if wanted else {}
        unused = {name for peer, names in there.items() for name in names if name in still.get(peer, ())} - used
        peers = self._peers_in_window(life.node_id, number) if wanted else set()
        budget = self.baton.now - began < worker.swarm.exchange.config.fetch_seconds and len(peers) <= self.scenario.fetch_peers
        expected = min(wanted, len(unused))
        if len(found) < expected:
            self.note(life.node_id, f"found {len(found)} of {expected} rollouts")
        if store.lies == lies and budget:
            self.check(
                "heard", len(found) >= expected, life.node_id, f"round {number}: found {len(found)} of {expected} unused rollouts"
            )
        return found

    def _in_window(self, node_id: str, number: int, moment: float) -> dict[str, list[str]]:
        """Peer → ids of its rollouts that lie whole in the window, as this machine's mount has them."""
        found: dict[str, list[str]] = {}
        for each in range(max(0, number - self.scenario.window + 1), number + 1):
            for files in self.cloud.folders.get(self.layout.rollouts_of(each), {}).values():
                whole = [file for file in files if file.seen_by(node_id, moment)]
                if whole and whole[0].writer != node_id and all(self._whole(file.at(node_id, moment)) for file in whole):
                    found.setdefault(whole[0].writer, []).extend(self._ids(whole[0].at(node_id, moment)))
        return found

    def _peers_in_window(self, node_id: str, number: int) -> set[str]:
        """Who has anything there by now, whole or not: looking into it spends the budget of peers."""
        rounds = range(max(0, number - self.scenario.window + 1), number + 1)
        folders = [self.cloud.folders.get(self.layout.rollouts_of(each), {}) for each in rounds]
        files = [file for folder in folders for files in folder.values() for file in files]
        return {file.writer for file in files if file.seen_by(node_id, self.baton.now)} - {node_id}

    def _ids(self, data: bytes) -> list[str]:
        if data not in self._rollouts:
            try:
                self._rollouts[data] = [rollout.id for rollout in decode(data).rollouts]
            except BadDocument:
                self._rollouts[data] = []
        return self._rollouts[data]

    def _whole(self, data: bytes) -> bool:
        return bool(self._ids(data))

    def _training(self, life: Life, worker: Worker, update: Callable[..., Any], *rest: Any) -> Any:
        learnt = update(*rest)
        batches: list[list[str]] = worker.trainer.batches  # type: ignore[attr-defined]
        external = [name for each in batches for name in each if not name.startswith(f"{life.node_id}/")]
        again = [name for name, count in Counter(external).items() if count > 1]
        self.check("twice", not again, life.node_id, f"trained twice on {again[:3]}")
        own = [name for each in batches for name in each if name.startswith(f"{life.node_id}/")]
        self.check("twice", len(own) == len(set(own)), life.node_id, "trained twice on own rollouts")
        return learnt

    def _putting(self, life: Life, put: Callable[[str, bytes], None], name: str, data: bytes) -> None:
        put(name, data)
        self.handed_over.setdefault(name, set()).add(data)
        for folder in (self.layout.rollouts, self.layout.rewards):
            if name.startswith(f"{folder}/"):
                number = int(name.split("/round_")[1].split("/")[0])
                self.check("rounds", number == life.playing, life.node_id, f"{name} was published in round {life.playing}")
                self.check("rounds", node_of_file(name.rpartition("/")[2]) == life.node_id, life.node_id, f"it published {name}")

    def _looking_for_old(self, life: Life, store: DriveFromHell, look: Callable[[int], list[int]], newest: int) -> list[int]:
        lies, began = store.lies, self.baton.now
        rounds = look(newest)
        self._looks.append((began, life.node_id, store.lies == lies))
        kept = [number for number in rounds if number > newest - max(2, self.scenario.window + 1, self.scenario.keep)]
        self.check("retention", not kept, life.node_id, f"it would remove {kept[:3]} in round {newest}")
        return rounds

    def _recording(self, life: Life, worker: Worker, done: Callable[[Round], None], row: Round) -> None:
        batch: list[str] = worker.trainer.batches[-1]  # type: ignore[attr-defined]
        self.check("achieved", [*row.own_ids, *row.external_ids] == batch, life.node_id, f"round {row.round}: ids differ")
        achieved = (row.own_used, row.external_used)
        external = sum(not name.startswith(f"{life.node_id}/") for name in batch)
        self.check(
            "achieved", achieved == (len(batch) - external, external), life.node_id, f"it says {achieved}, trained on {batch}"
        )
        self.check("achieved", row.external_used <= row.external_wanted, life.node_id, "more external rollouts than wanted")
        self.check("rounds", row.round == life.playing, life.node_id, f"row of round {row.round} in round {life.playing}")
        done(row)
        life.recorded = True
        life.rows.append(row)

    def _following(
        self, life: Life, worker: Worker, following: Callable[..., int], number: int, waiting: Callable[[], None]
    ) -> int:
        began, frozen = self.baton.now, life.frozen
        following_round = following(number, waiting)
        waited = self.baton.now - began - (life.frozen - frozen)
        patience = PATIENCE_INTERVALS * self.interval + LOOK_SECONDS
        self.check("waiting", waited <= patience, life.node_id, f"waited {waited:.0f} s for the round after {number}")
        announced = worker.swarm.rounds.newest.round if worker.swarm.rounds.newest else None
        right = following_round == number + 1 or following_round == announced
        self.check("rounds", right, life.node_id, f"round {following_round} after {number}, announced is {announced}")
        return following_round

    # While it runs: coordinators

    def watch_coordinator(self, coordinator: Coordinator, store: DriveFromHell, number: int) -> None:
        life = Life(coordinator.settings.node_id, number, born=self.baton.now)
        self.lives.setdefault(life.node_id, []).append(life)
        _wrap(coordinator.retention, "removable", lambda look, newest: self._looking_for_old(life, store, look, newest))
        _wrap(coordinator, "_begin", lambda begin: self._beginning(life, store, begin))
        _wrap(coordinator, "_announce", lambda announce, wanted: self._announcing(life, coordinator, announce, wanted))
        _wrap(coordinator, "_keep_open", lambda keep_open, number: self._keeping_open(life, keep_open, number))
        _wrap(coordinator, "_waiting_for", lambda waiting_for, *rest: self._looking(life, coordinator, waiting_for, *rest))
        _wrap(coordinator.attendance, "submitted", lambda submitted, *rest: self._noticing(life, submitted, *rest))

    def _beginning(self, life: Life, store: DriveFromHell, begin: Callable[[], int]) -> int:
        lies = store.lies
        names = self.cloud.names(self.layout.states, life.node_id, self.baton.now)
        newest = max(
            (number for number in map(round_of_file, names) if number is not None and self._valid(life.node_id, number)), default=-1
        )
        number = begin()
        if store.lies == lies:
            self.check("rounds", number >= newest, life.node_id, f"began with round {number}, round {newest} was announced")
        return number

    def _valid(self, node_id: str, number: int) -> bool:
        there = self.cloud.find(self.layout.round(number), node_id, self.baton.now)
        return any(_opened(file.at(node_id, self.baton.now), Announcement) for file in there)

    def _announcing(self, life: Life, coordinator: Coordinator, announce: Callable[[int], int], wanted: int) -> int:
        number = announce(wanted)
        if not coordinator.stop.requested:
            self.check("rounds", number > life.opened, life.node_id, f"opened round {number} after {life.opened}")
            self.check(
                "rounds", wanted <= number < self.scenario.rounds, life.node_id, f"opened {number} of {self.scenario.rounds}"
            )
            self.note(life.node_id, f"round {number} is open")
        life.opened = max(life.opened, number)
        return number

    def _keeping_open(self, life: Life, keep_open: Callable[[int], int], number: int) -> int:
        life.first_reward, life.overdue = None, False
        life.openings[number] = self.baton.now
        return keep_open(number)

    def _looking(
        self,
        life: Life,
        coordinator: Coordinator,
        waiting_for: Callable[..., str],
        done: set[str],
        *seconds: float | None,
    ) -> str:
        """The end of a look at which the store answered all that was asked; it is the last of its round if that is overdue."""
        self.check("waiting", not life.overdue, life.node_id, f"keeps round {life.opened} open an interval after its first reward")
        life.first_reward = self.baton.now if life.first_reward is None and done else life.first_reward
        life.overdue = life.first_reward is not None and self.baton.now - life.first_reward >= self.interval
        said = waiting_for(done, *seconds)
        if said and done and self.scenario.advance == "hybrid":
            for node_id in coordinator.attendance.awaited() - done:
                self._judge_wait(life, node_id)
        return said

    def _noticing(self, life: Life, submitted: Callable[..., None], node_id: str, number: int, timed: bool = True) -> None:
        noticed = life.noticed.setdefault(node_id, [])
        if not noticed or number > noticed[-1][1]:
            noticed.append((self.baton.now, number, timed and number in life.openings))
        submitted(node_id, number, timed)

    def _judge_wait(self, life: Life, node_id: str) -> None:
        """A round waits for this worker: it must have submitted, and its next reward may still come, as far as can be known."""
        submitted = [
            name for name in self.handed_over if name.startswith(self.layout.rewards) and name.endswith(f"/{node_id}.json")
        ]
        seen = [moment for noticed in life.noticed.values() for moment, _, timed in noticed[:1] if timed]
        if len(life.openings) == 1 and node_id not in life.noticed and seen:
            waited, took = self.baton.now - min(seen), min(seen) - life.born
            self.check("held_up", waited <= took, life.node_id, f"waits {waited:.1f} s for {node_id} in the first round")
            return
        self.check("held_up", bool(submitted), life.node_id, f"waits for {node_id}, which has never submitted")
        first_opening = min(life.openings.values())
        paces, before, last = list[float](), -math.inf, -1
        for moment, number, timed in life.noticed.get(node_id, ()):
            if timed:
                paces.append(moment - max(life.openings[number], before))
            before, last = moment if moment >= first_opening else before, number
        usual = median(paces[-5:]) if paces else self.interval / 2
        begins = max(before, min((at for number, at in life.openings.items() if number > last), default=math.inf))
        late = self.baton.now - begins
        allowed = usual + max(usual, self.interval / 20)
        self.check(
            "held_up", late <= allowed + 1e-6, life.node_id, f"waits {late:.1f} s for {node_id}, which usually takes {usual:.1f} s"
        )

    # What befell them

    def frozen(self, node_id: str, seconds: float) -> None:
        if node_id in self.lives:
            self.lives[node_id][-1].frozen += seconds

    def killed(self, node_id: str) -> None:
        self._doomed.discard(node_id)
        if node_id in self.lives:
            self.lives[node_id][-1].killed = True

    def doomed(self, node_id: str) -> None:
        self._doomed.add(node_id)

    def crashed(self, node_id: str, failure: Exception) -> None:
        """Only the bug that fate planted may end a process."""
        self.check("outcome", node_id in self._doomed, node_id, f"crashed: {failure!r}")
        self._doomed.discard(node_id)

    def ended(self, node_id: str, outcome: str) -> None:
        self.check("outcome", node_id not in self._doomed or outcome == "stopped", node_id, f"{outcome}, although a bug was met")
        self._doomed.discard(node_id)
        if outcome == "complete" and node_id in self.scenario.workers:
            last = self.layout.reward(self.scenario.rounds - 1, node_id)
            self.check("outcome", last in self.handed_over, node_id, "complete without the last round")

    def still_running(self, node_id: str) -> None:
        life = self.lives[node_id][-1] if node_id in self.lives else None
        self.check("waiting", False, node_id, f"waits for ever; its last round was {life.last if life else None}")

    # When all is over

    def conclude(self, store: DriveFromHell) -> None:
        """Judge what is left, by a mount that tells no lies."""
        truth = self.cloud.truth()
        self._judge_documents(truth)
        self._judge_rewards(truth)
        self._judge_announcements(truth)
        self._judge_deletions()
        self._judge_journals(store)
        if not self.scenario.coordinators and len(self.scenario.workers) == 1:
            self._judge_weights()

    def _judge_documents(self, truth: dict[str, list[bytes]]) -> None:
        removed = {name for _, _, name in self.cloud.deleted}
        for name, versions in self.handed_over.items():
            archived = truth.get(name.replace("experiments/", "archives/", 1), [])
            if name not in removed:
                self.check("handed_over", bool(versions & set(truth.get(name, ()))), "the store", f"{name} is lost")
            elif self.scenario.archive and name.startswith(f"{self.layout.rollouts}/"):
                kept = [*archived, *truth.get(name, ()), *self._renamed(name, truth)]
                self.check("retention", bool(versions & set(kept)), "the store", f"{name} is neither there nor archived")
        for name in (name for name in truth if name.startswith("archives/")):
            placed = name.replace("archives/", "experiments/", 1)
            depth = placed.count("/") == self.layout.bundle(0, "w0").count("/")
            self.check("retention", self.scenario.archive and depth, "the store", f"{name} should not be there")

    def _renamed(self, name: str, truth: dict[str, list[bytes]]) -> list[bytes]:
        """Archived files of the same node and round: a half file of a killed process may have taken the usual name."""
        folder, _, file = name.replace("experiments/", "archives/", 1).rpartition("/")
        node_id = node_of_file(file)
        return [
            data
            for other, datas in truth.items()
            if other.startswith(f"{folder}/") and node_of_file(other.rpartition("/")[2]) == node_id
            for data in datas
        ]

    def _judge_rewards(self, truth: dict[str, list[bytes]]) -> None:
        kept = {name: datas for name, datas in truth.items() if name.startswith(f"{self.layout.rewards}/")}
        for name, datas in kept.items():
            rewards = [reward for reward in (_opened(data, Reward) for data in datas) if reward]
            self.check("rewards", bool(rewards), "the store", f"{name} cannot be read")
            submitted = {reward.reward for reward in (_opened(data, Reward) for data in self.handed_over.get(name, ())) if reward}
            for reward in rewards:
                self.check(
                    "rewards", reward.reward in submitted, "the store", f"{name} says {reward.reward}, submitted: {submitted}"
                )
                self.check("rewards", self.layout.reward(reward.round, reward.peer_id) == name, "the store", f"{name} is misplaced")

    def _judge_announcements(self, truth: dict[str, list[bytes]]) -> None:
        for name, datas in truth.items():
            number = round_of_file(name.rpartition("/")[2]) if name.startswith(f"{self.layout.states}/") else None
            if number is None:
                continue
            found = {announced.session: announced for announced in (_opened(data, Announcement) for data in datas) if announced}
            self.check("rounds", number < self.scenario.rounds, "the store", f"{name} is beyond the last round")
            contents = {data for data in datas if _opened(data, Announcement)}
            self.check("rounds", len(contents) == len(found), "the store", f"{name} was announced twice by one coordinator")
            for announced in found.values():
                self.check("rounds", announced.round == number, "the store", f"{name} announces {announced.round}")
                invented = [
                    node for node in announced.submitted_before if self.layout.reward(number - 1, node) not in self.handed_over
                ]
                self.check("rewards", not invented, "the store", f"{name} counts rewards of {invented} that nobody submitted")

    def _judge_deletions(self) -> None:
        """Rewards and announcements stay; a rollout may go when nobody who is heard of can come to a round whose window has it.

        Nobody foresees that a node which has done that round will crash, and do it again from its checkpoint.
        """
        for moment, node_id, name in self.cloud.deleted:
            if name.startswith((f"{self.layout.rewards}/", f"{self.layout.states}/")):
                self.check("retention", False, node_id, f"{name} was removed at {moment:.0f} s")
            elif name.startswith(f"{self.layout.rollouts}/"):
                number = int(name.split("/round_")[1].split("/")[0])
                needed = [who for who in self.played if who[0] >= moment and 0 <= who[2] - number < self.scenario.window]
                looked = self._honest_look(node_id, moment)
                needed = [who for who in needed if looked is not None and self._heard_of(who[1], looked)]
                needed = [who for who in needed if self.done.get(who[1:], math.inf) > moment]
                self.check("retention", not needed, node_id, f"{name} was removed at {moment:.0f} s, {needed[:1]} needs it")
                noted = recognised(round_of_file, self._names(self.layout.removals_of(node_id)))
                self.check("retention", number < max(noted, default=0), node_id, f"nothing says that {name} was removed")
                author = node_of_file(name.rpartition("/")[2])
                self.check("retention", node_id == author or node_id in self.scenario.coordinators, node_id, f"it removed {name}")
            else:
                self.checks["retention"] += 1

    def _names(self, folder: str) -> list[str]:
        return [name for name, files in self.cloud.folders.get(folder, {}).items() if files]

    def _heard_of(self, node_id: str, moment: float) -> bool:
        """Whether others could know of a node, and had a new heartbeat of it, which did not say that it left, before it counts as
        silent."""
        began = moment - SILENT_INTERVALS * self.interval
        known = any(file.shown <= moment for file in self.cloud.files.get(self.layout.peer(node_id), ()))
        beats = [file for file in self.cloud.beats if file.key.startswith(f"{self.layout.heartbeats(node_id)}/")]
        seen = [file for file in beats if began < file.shown <= moment and file.shown < file.removed]
        newest = max(seen, key=lambda file: file.created, default=None)
        said = newest and _opened(max((data for _, data in newest.versions), key=len), Heartbeat)
        return known and newest is not None and not (said and has_left(said.doing))

    def _honest_look(self, machine: str, moment: float) -> float | None:
        """When the last look before this moment for what may be removed began; None if it was told a lie.

        Who removes without a look is judged by what was known at that moment.
        """
        looks = (look for look in reversed(self._looks) if look[1] == machine and look[0] <= moment)
        return next((began if honest else None for began, _, honest in looks), moment)

    def _judge_journals(self, store: DriveFromHell) -> None:
        """One row a round, and every row of a process that was not killed; what that process said last counts."""
        for node_id in self.scenario.workers:
            rows = {row["round"]: row for row in metrics(store, self.layout, node_id)}
            expected = {row.round for life in self.lives.get(node_id, ()) for row in life.rows if not life.killed}
            for number in expected:
                self.check("rewards", number in rows, node_id, f"the row of round {number} is lost")
            for number, row in rows.items():
                name = self.layout.reward(number, node_id)
                said = {reward.reward for reward in (_opened(data, Reward) for data in self.handed_over.get(name, ())) if reward}
                self.check("rewards", row["reward"] in said, node_id, f"its row of round {number} says {row['reward']}, not {said}")

    def _judge_weights(self) -> None:
        """A node that is alone ends with the weights that it would have had without any fault."""
        node_id = self.scenario.workers[0]
        expected = [f"{node_id}/{number}/0/{slot}" for number in range(self.scenario.rounds) for slot in range(self.scenario.own)]
        learnt = [name for batch in self.weights[node_id].batches for name in batch]
        self.check("twice", learnt == expected, node_id, "its weights are not those of an undisturbed run")


def _opened(data: bytes, kind: Any) -> Any:
    try:
        return unseal(data, kind)
    except BadDocument:
        return None


def _wrap(owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Let `around(original, *arguments)` take the place of one object's method."""
    original = getattr(owner, name)
    setattr(owner, name, lambda *arguments: around(original, *arguments))
