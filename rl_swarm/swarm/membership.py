"""A node that has joined an experiment on a store: the parts that all its documents go through."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rl_swarm import __version__
from rl_swarm.clock import Clock
from rl_swarm.config import Config
from rl_swarm.errors import Refused, StoreAway
from rl_swarm.identity import Identity, allowed_keys, require_library
from rl_swarm.store import Store
from rl_swarm.swarm import experiment as experiments
from rl_swarm.swarm.copies import Copies
from rl_swarm.swarm.correction import check_current
from rl_swarm.swarm.experiment import Experiment
from rl_swarm.swarm.layout import ERRORS, Layout
from rl_swarm.swarm.peers import BEAT_SHARE, Pulse, Registration, register
from rl_swarm.swarm.protocol import Newsbox
from rl_swarm.swarm.publisher import Publisher
from rl_swarm.swarm.retention import Retention, retention_of
from rl_swarm.swarm.signatures import Signatures

HOW_TO_READ = """\
Files on this mount cannot grow in place, so what node {node_id} writes about itself comes in numbered pieces:
metrics/, training_events/, stdout/ and stderr/ beside this file. The whole files appear when the node stops.

Read and follow them with:
  rl-swarm logs -f {node_id} --experiment {experiment} --gdrive-path FOLDER
where FOLDER is the shared folder, the one with experiments/ in it.
"""


@dataclass(frozen=True)
class Membership:
    store: Store
    layout: Layout
    node_id: str
    experiment: Experiment
    clock: Clock
    signatures: Signatures
    publisher: Publisher
    copies: Copies
    news: Newsbox
    session: str  # of this process
    retention: Retention

    def share(self, key: str, data: bytes) -> None:
        """Put a small document under a key that may exist already."""
        try:
            self.store.rewrite(key, data)
        except Refused as error:
            self.news.add("refused", str(error))

    def open_logs(self) -> None:
        """Make `stderr.log`, which stays empty unless the node fails; on a mount also a text that says how to read the journals."""
        try:
            self.store.put(self.layout.log(self.node_id, ERRORS), b"")
        except Refused as error:
            self.news.add("refused", str(error))
        if not self.store.appendable:
            text = HOW_TO_READ.format(node_id=self.node_id, experiment=self.layout.experiment_name)
            self.share(self.layout.how_to_read(self.node_id), text.encode())

    def merge(self, until: float) -> None:
        """Put the finished journals under their documented names."""
        with contextlib.suppress(StoreAway):  # the segments exist, and every reader knows them
            self.copies.merge(until)


def registration(config: Config, clock: Clock, session: str) -> Registration:
    model = experiments.public_model(config.model)
    return Registration(config.node, config.role, clock.wall(), model, config.node, __version__, session)


def enter(
    config: Config,
    store: Store,
    experiment: Experiment,
    identity: Identity | None,
    *,
    folder: Path,
    record: Path,
    session: str,
    clock: Clock,
    news: Newsbox,
    doing: Callable[[], tuple[str, int]],
    background: bool = True,
) -> Membership:
    """Register the node; from then on publish the spool in `folder`, copy the journals below `record`, and send heartbeats that
    say what the node is `doing`. Also removes old rollouts, if the settings ask for it."""
    node_id, layout = config.node, Layout(experiment.experiment)
    if config.require_signatures:
        require_library("SWARM_REQUIRE_SIGNATURES")
    signatures = Signatures(
        identity,
        experiment_id=experiment.experiment_id,
        announcers=experiments.all_announcers(experiment),
        required=config.require_signatures,
        allowed=allowed_keys(config.allowed_keys) if config.allowed_keys else None,
        book=folder / "keys",
        say=partial(news.add, "signatures"),
    )
    experiments.check_announcer(config.role, signatures)
    try:
        register(store, layout, registration(config, clock, session), signatures)
    except Refused as error:  # a coordinator needs no registration, and a worker can do without
        waits = "" if config.role == "coordinator" else ", and the coordinator does not wait for it"
        news.add("unregistered", f"{error}; until then this node goes on unregistered{waits}")
    pulse = Pulse(store, layout, node_id, clock, session, partial(news.add, "name_in_use"), signatures)
    refused = partial(news.add, "refused")
    copies = Copies(record, layout.journals(node_id), store, folder / "copied", clock, refused)
    retention = retention_of(config, store, layout, clock, signatures, news.add)
    publisher = Publisher(
        store,
        folder / "spool",
        clock,
        beat=lambda: pulse.beat(*doing()),
        beat_seconds=max(1.0, config.round_interval / BEAT_SHARE),
        background=background,
        mine=signatures.reclaims,
        copy=copies.bring,
        clean=retention.clean,
        tell=refused,
        confirm=partial(check_current, store, layout, experiment),
    )
    return Membership(store, layout, node_id, experiment, clock, signatures, publisher, copies, news, session, retention)
