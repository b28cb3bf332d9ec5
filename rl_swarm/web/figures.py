"""The newest figures of a run for monitoring; Prometheus and OpenTelemetry get the same numbers."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from rl_swarm.runs.following import NodeMoment
from rl_swarm.runs.index import RunIndex

RUN, NODE = "rl_swarm_", "rl_swarm_node_"
HELP = {
    f"{RUN}rounds_done": "Rounds that at least one node has finished.",
    f"{RUN}workers": "Registered workers.",
    f"{NODE}last_sign_seconds": "When the node gave its last sign of life, on its own clock.",
    f"{NODE}rounds": "Rounds that the node has finished.",
    f"{NODE}round": "The newest round that the node has finished.",
    f"{NODE}reward": "Mean reward of the node's own completions in its newest round.",
    f"{NODE}reward_total": "Sum of the node's rewards.",
    f"{NODE}tokens_total": "Tokens that the node has written.",
    f"{NODE}tokens_per_second": "Tokens that the node writes in a second of generating.",
    f"{NODE}own_used": "Informative own rollouts of the newest round.",
    f"{NODE}own_wanted": "Own rollouts of a round, I.",
    f"{NODE}external_used": "External rollouts that the newest update used.",
    f"{NODE}external_wanted": "External rollouts that a round asks for, J.",
    f"{NODE}external_age": "Mean age in rounds of the external rollouts.",
    f"{NODE}rejected_total": "Files and rollouts of peers that the node rejected.",
    f"{NODE}entropy": "Nats a token.",
    f"{NODE}held_out": "Newest held-out accuracy, as the verifier reads.",
}


@dataclass(frozen=True)
class Figure:
    """`labels` hold the experiment and, of a figure of one node, the node."""

    name: str
    labels: dict[str, str]
    value: float


def figures(index: RunIndex) -> Iterator[Figure]:
    """Every figure that was measured."""
    moment, run = index.moment, {"experiment": index.moment.experiment}
    yield Figure(f"{RUN}rounds_done", run, moment.rounds_done)
    yield Figure(f"{RUN}workers", run, len(index.workers))
    for node in moment.nodes:
        for name, value in _of_node(index, node).items():
            if value is not None:
                yield Figure(f"{NODE}{name}", run | {"node": node.node_id}, float(value))


def _of_node(index: RunIndex, node: NodeMoment) -> dict[str, float | None]:
    found: dict[str, float | None] = {"last_sign_seconds": node.last_sign}
    if kept := index.ledger.nodes.get(node.node_id):
        found |= {"rounds": kept.rounds, "reward_total": kept.reward_total, "tokens_total": kept.tokens}
        found |= {"rejected_total": sum(kept.rejected.values()), "held_out": _newest_held_out(index, node.node_id)}
    if last := node.last:
        found |= {"round": last.round, "reward": last.reward, "tokens_per_second": last.tokens_per_s, "entropy": last.entropy}
        found |= {"own_used": last.own_used, "own_wanted": last.own_wanted, "external_age": last.external_age}
        found |= {"external_used": last.external_used, "external_wanted": last.external_wanted}
    return found


def _newest_held_out(index: RunIndex, node_id: str) -> float | None:
    kept = index.ledger.nodes.get(node_id)
    return kept.evaluations[max(kept.evaluations)].held_out if kept and kept.evaluations else None


class _Figures(Collector):
    def __init__(self, found: Iterable[Figure]) -> None:
        self.found = list(found)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        families: dict[str, GaugeMetricFamily] = {}
        for each in self.found:
            family = families.setdefault(each.name, GaugeMetricFamily(each.name, HELP[each.name], labels=list(each.labels)))
            family.add_metric(list(each.labels.values()), each.value)
        yield from families.values()


def prometheus_text(index: RunIndex) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Figures(figures(index)))
    return generate_latest(registry)
