"""Build the response bodies of the web API from a run's index. The only files read here are requested rollouts."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import fmean

from rl_swarm.rollout import Rollout
from rl_swarm.runs.advice import FRUITLESS_ROLLOUTS, remedy
from rl_swarm.runs.browsing import Place, Wanted, advantages, bounded_rewards, mean_reward, page_of
from rl_swarm.runs.examples import completions_of
from rl_swarm.runs.following import MEAN_ROUNDS, Moment, NodeMoment
from rl_swarm.runs.index import RunIndex
from rl_swarm.runs.ledger import Ledger, NodeLedger
from rl_swarm.runs.measures import interval
from rl_swarm.runs.names import readable_name
from rl_swarm.runs.summary import mean_evaluations
from rl_swarm.tasks import parsed_answer
from rl_swarm.text import one_line, visible
from rl_swarm.web import documents as say

MOST_CURVES = 64  # nodes whose curves are sent
LONGEST_TEXT = 8_000  # characters of a prompt or a completion in a list
MUCH_UNINFORMATIVE = 0.8
MOST_NOTES = 40
MOST_TASKS = 200
ORDERS = {"reward": "reward", "won": "rounds_won", "total": "reward_total"}
NOTHING = NodeLedger()


def safe(text: str, most: int = 200) -> str:
    """Make a stranger's text one line that is safe to show."""
    return visible(one_line(text, most))


def status_of(moment: Moment, now: float) -> str:
    """Return the status of a run; "silent" if it should be running and no worker has given a sign of life for long."""
    workers = moment.workers
    silent = moment.status == "running" and workers and all(node.silent_seconds(now) is not None for node in workers)
    return "silent" if silent else safe(moment.status)


def round_and_stage(index: RunIndex, now: float) -> say.RoundAndStage:
    moment, settings = index.moment, index.following.settings
    last = [node.last for node in moment.nodes if node.last]
    return say.RoundAndStage(
        experiment=moment.experiment,
        version=index.version,
        status=status_of(moment, now),
        round=moment.round,
        stage=max((row.stage for row in last), default=0),
        rounds_done=moment.rounds_done,
        max_rounds=moment.max_rounds,
        opened_at=moment.opened_at,
        last_round_at=moment.last_round_at,
        pace=moment.pace,
        seconds_left=None if (left := moment.seconds_left(now)) is None else float(round(left)),
        tokens_per_s=moment.tokens_per_s(now),
        workers=len(index.workers),
        left_out=moment.left_out,
        model=safe(settings.model) if settings else "",
        own_wanted=settings.own_count if settings else None,
        external_wanted=settings.external_count if settings else None,
        group_size=settings.group_size if settings else None,
        tasks=safe(settings.tasks, 500) if settings else "",
        reading=index.behind,
        trouble=safe(index.trouble, 300),
    )


def peers(index: RunIndex, now: float, offset: int, limit: int) -> say.Peers:
    nodes, known = index.moment.nodes, index.workers
    uses = index.ledger.uses(known)
    gave: Counter[str] = Counter()
    for (_, author), count in uses.items():
        gave[author] += count
    got: Counter[str] = Counter()
    for (learner, _), count in uses.items():
        got[learner] += count
    shown = nodes[offset : offset + limit]
    return say.Peers(
        peers=[_peer(node, index.ledger.nodes.get(node.node_id, NOTHING), gave, got, now) for node in shown],
        total=len(nodes),
        uses=[say.Uses(learner, author, count) for (learner, author), count in sorted(uses.items())],
        remarks=list(_remarks(index)),
    )


def _peer(node: NodeMoment, kept: NodeLedger, gave: Counter[str], got: Counter[str], now: float) -> say.Peer:
    last, silent = node.last, node.silent_seconds(now)
    return say.Peer(
        id=node.node_id,
        name=readable_name(node.node_id),
        role=safe(node.role),
        model=safe(node.model),
        doing=safe(node.doing),
        since=node.since,
        round=node.round,
        last_sign=node.last_sign,
        silent_seconds=None if silent is None else float(round(silent)),
        ended=node.ended,
        reward=node.reward,
        rounds=kept.rounds,
        own_used=last.own_used if last else None,
        own_wanted=last.own_wanted if last else None,
        external_used=last.external_used if last else None,
        external_wanted=last.external_wanted if last else None,
        external_age=last.external_age if last else None,
        seconds=node.seconds,
        tokens_per_s=last.tokens_per_s if last else None,
        gave=gave[node.node_id],
        got=got[node.node_id],
        own_trained=kept.own_used,
        tokens=kept.tokens,
        rejected={safe(reason): count for reason, count in kept.rejected.items() if count},
        muted=[say.Mute(safe(each.peer), each.until, safe(each.reason)) for each in node.muted],
        name_in_use=node.name_in_use,
    )


def _remarks(index: RunIndex) -> Iterable[str]:
    if index.moment.left_out:
        yield f"{index.moment.left_out} more registered: made up, or without a sign of life"
    for node in index.moment.nodes:
        if node.name_in_use:
            yield f"{node.node_id} says that another process uses its name: stop one of the two, or give it another NODE_ID"


def _ranked(index: RunIndex, order: str) -> list[say.Leader]:
    won, moments = index.ledger.rounds_won(), {node.node_id: node for node in index.moment.nodes}
    leaders = []
    for name in index.workers:
        kept = index.ledger.nodes.get(name, NOTHING)
        leaders.append(
            say.Leader(0, name, readable_name(name), moments[name].reward, kept.reward_total, kept.rounds, float(won[name]))
        )
    leaders.sort(key=lambda each: (-(getattr(each, ORDERS[order]) or 0.0), each.id))
    return [replace(each, rank=rank) for rank, each in enumerate(leaders, 1)]


def leaderboard(index: RunIndex, order: str, offset: int, limit: int) -> say.Leaderboard:
    leaders = _ranked(index, order)
    return say.Leaderboard(leaders[offset : offset + limit], len(leaders))


def leaderboard_cumulative(index: RunIndex, offset: int, limit: int) -> say.CumulativeLeaderboard:
    """Sum each node's rewards up to each round."""
    ranked, found = _ranked(index, "total"), []
    for leader in ranked[offset : offset + limit]:
        total, points = 0.0, list[say.Point]()
        for stretch in index.ledger.stretches(leader.id, "reward"):
            total += stretch.mean * stretch.count
            points.append((stretch.first + index.ledger.width - 1, total))
        found.append(say.Cumulative(leader.rank, leader.id, leader.name, leader.reward_total, points))
    return say.CumulativeLeaderboard(found, len(ranked))


def rewards_history(index: RunIndex) -> say.RewardsHistory:
    """Return own rewards of each worker, and of all; the newest stretch once as many nodes have done it as the one before."""
    ledger, half = index.ledger, (index.ledger.width - 1) / 2
    curves, all_of = [], dict[int, list[float]]()
    for name in index.workers:
        stretches = ledger.stretches(name, "reward")
        curves.append(say.NodeCurve(name, readable_name(name), [(each.first + half, each.mean) for each in stretches]))
        for each in stretches:
            all_of.setdefault(each.first, []).append(each.mean)
    places = sorted(all_of)
    if len(places) > 1 and len(all_of[places[-1]]) < len(all_of[places[-2]]):
        del places[-1]
    mean = [say.BandPoint(place + half, fmean(all_of[place]), min(all_of[place]), max(all_of[place])) for place in places]
    return say.RewardsHistory(ledger.width, mean, curves[:MOST_CURVES], max(0, len(curves) - MOST_CURVES))


def metrics(index: RunIndex, figures: Sequence[str], node_id: str | None) -> say.Metrics:
    ledger, names = index.ledger, [node_id] if node_id else index.workers
    table = ledger.table(names, figures)
    rejected: Counter[str] = Counter()
    for name in names:
        rejected.update({safe(reason): count for reason, count in ledger.nodes.get(name, NOTHING).rejected.items() if count})
    return say.Metrics(
        width=ledger.width,
        rounds=[first + (ledger.width - 1) / 2 for first in table],
        figures={name: [row[place] for row in table.values()] for place, name in enumerate(figures)},
        held_out=_held_out(ledger, names),
        rejected=dict(rejected.most_common(20)),
        uninformative=_advice(index, names),
        notes=_notes(ledger, names),
    )


def _held_out(ledger: Ledger, names: Sequence[str]) -> list[say.HeldOut]:
    kept = [ledger.nodes[name].evaluations for name in names if name in ledger.nodes]
    means = mean_evaluations([[each[number] for number in sorted(each)] for each in kept])
    return [
        say.HeldOut(
            each.round,
            each.held_out,
            each.held_out_in_form,
            each.held_out_style_blind,
            *interval(each.held_out, each.held_out_questions),
            each.held_out_questions,
        )
        for each in means
    ]


def _advice(index: RunIndex, names: Sequence[str]) -> say.Advice:
    """The share of own rollouts from which nothing can be learnt, and what to do if it stays high."""
    rows = [node.last for node in index.moment.nodes if node.node_id in names and node.last and node.last.own_wanted]
    recent = [stretch for name in names for stretch in index.ledger.stretches(name, "uninformative")[-MEAN_ROUNDS:]]
    if not recent or not rows:
        return say.Advice(None, "")
    share = fmean(each.mean for each in recent)
    settings = index.following.settings
    rollouts = sum(index.ledger.nodes.get(row.node_id, NOTHING).rounds * row.own_wanted for row in rows)
    if share < MUCH_UNINFORMATIVE or rollouts < FRUITLESS_ROLLOUTS or settings is None:
        return say.Advice(share, "")
    answered, truncated = fmean(row.answered for row in rows), fmean(row.truncated for row in rows)
    return say.Advice(share, f"Little can be learnt: {remedy(answered, truncated, settings)}.")


def _notes(ledger: Ledger, names: Sequence[str]) -> list[say.NoteLine]:
    found = [note for name in names for note in ledger.nodes.get(name, NOTHING).notes]
    newest = sorted(found, key=lambda note: note.at)[-MOST_NOTES:]
    return [say.NoteLine(note.at, note.node_id, safe(note.kind), safe(note.line, 600)) for note in reversed(newest)]


def gossip(index: RunIndex, limit: int) -> say.Gossips:
    newest = list(index.gossip)[-limit:]
    return say.Gossips(
        [
            say.Gossip(
                each.at,
                each.node_id,
                readable_name(each.node_id),
                each.round,
                safe(each.task),
                each.rollout_id,
                visible(each.answered.prompt),
                visible(each.answered.text),
                each.answered.reward,
                each.answered.verdict,
            )
            for each in reversed(newest)
        ]
    )


def rollouts(index: RunIndex, wanted: Wanted, start: Place | None, limit: int) -> say.Rollouts:
    """Return a page of rollouts. Reads the store without holding the lock."""
    with index.reading():
        newest, nodes = index.ledger.newest, [wanted.node_id] if wanted.node_id else index.workers
        tasks = sorted({task for node in index.moment.nodes if node.last for task in node.last.reward_by_task})
    place = start or Place(newest if wanted.round is None else wanted.round)
    found, after = page_of(index.store, index.layout, wanted, nodes, place, limit) if place.round >= 0 else ([], None)
    with index.reading():
        shown = [rollout_view(index, each, LONGEST_TEXT) for each in found]
    next_start = f"{after.round}.{after.node}.{after.skip}" if after else None
    return say.Rollouts(shown, next_start, [safe(task) for task in tasks[:MOST_TASKS]], newest if newest >= 0 else None)


def rollout_view(index: RunIndex, rollout: Rollout, most: int) -> say.RolloutView:
    asked = rollout.question
    completions = [
        say.CompletionView(
            text=visible(done.text[:most]),
            cut=len(done.text) > most,
            parsed=None if (parsed := parsed_answer(done.text)) is None else visible(parsed[:most]),
            reward=reward,
            advantage=advantage,
            verdict=answered.verdict,
            tokens=done.tokens,
            finish=safe(done.finish),
        )
        for done, answered, reward, advantage in zip(
            rollout.completions, completions_of(rollout), bounded_rewards(rollout), advantages(rollout), strict=True
        )
    ]
    learners = index.ledger.learners_of(rollout.id)
    return say.RolloutView(
        id=rollout.id,
        node=rollout.node_id,
        name=readable_name(rollout.node_id),
        round=rollout.round,
        stage=rollout.stage,
        slot=rollout.slot,
        task=safe(asked.task or ""),
        prompt=visible(asked.prompt[:most]),
        cut=len(asked.prompt) > most,
        expected=None if asked.answer is None else visible(asked.answer[:most]),
        reward=mean_reward(rollout),
        informative=rollout.informative,
        completions=completions,
        trained_by=[say.Learner(name, readable_name(name), number) for name, number in learners],
    )
