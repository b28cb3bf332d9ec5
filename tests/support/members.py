"""Nodes of an experiment in this process: joined as real ones are, by default without a thread."""

import secrets
from functools import partial
from pathlib import Path
from typing import Any

from rl_swarm.clock import Clock
from rl_swarm.config import Config
from rl_swarm.node.journal import Journal
from rl_swarm.node.worker import Learner, Worker
from rl_swarm.processes.stopping import Stop
from rl_swarm.store import Store
from rl_swarm.swarm.copies import Copies
from rl_swarm.swarm.exchange import Exchange
from rl_swarm.swarm.experiment import Experiment
from rl_swarm.swarm.layout import Layout
from rl_swarm.swarm.membership import Membership
from rl_swarm.swarm.protocol import Newsbox
from rl_swarm.swarm.publisher import Publisher
from rl_swarm.swarm.retention import retention_of
from rl_swarm.swarm.signatures import Signatures
from rl_swarm.swarm.through_store import StoreSwarm
from tests.support.standins import StandInTasks

LAYOUT = Layout("trial")


def member_of(
    store: Store,
    folder: Path,
    node_id: str,
    clock: Clock,
    signatures: Signatures | None = None,
    background: bool = False,
    config: Config | None = None,
) -> Membership:
    """A node that did not register; its own folder is `folder`/`node_id`, with its journals below `record`."""
    news, own = Newsbox(), folder / node_id
    own.mkdir(parents=True, exist_ok=True)
    refused = partial(news.add, "refused")
    copies = Copies(own / "record", LAYOUT.journals(node_id), store, own / "copied", clock, refused)
    signatures, session = signatures or Signatures(), secrets.token_hex(8)
    settings = config or Config(node_id=node_id)
    retention = retention_of(settings, store, LAYOUT, clock, signatures, news.add)
    publisher = Publisher(
        store, own / "spool", clock, background=background, copy=copies.bring, clean=retention.clean, tell=refused
    )
    experiment = Experiment(1, "trial", "0" * 16, 0.0, "", {}, "stand-in 1", (2, 256))
    return Membership(store, LAYOUT, node_id, experiment, clock, signatures, publisher, copies, news, session, retention)


def journal_of(member: Membership, folder: Path, **more: Any) -> Journal:
    return Journal(folder / member.node_id / "record", LAYOUT, member.node_id, member.clock, **({"console": None} | more))


def exchange_of(member: Membership, secret: str = "", quarantine: Path | None = None, **settings: Any) -> Exchange:
    """An exchange with stand-in tasks; `settings` are fields of Config."""
    return Exchange(member, Config(**settings), StandInTasks(member.node_id).verify, secret, quarantine)


def worker_of(
    member: Membership, folder: Path, settings: Config, learner: Learner, checkpoints: Any, *, stop: Stop | None = None
) -> Worker:
    swarm = StoreSwarm(member, settings, learner.tasks.verify)
    return Worker(settings, learner, swarm, journal_of(member, folder), checkpoints, stop or Stop())


def copy_journals(worker: Worker) -> None:
    """Copy all journals of a worker to its store."""
    worker.journal.flush()
    assert isinstance(worker.swarm, StoreSwarm)
    worker.swarm.member.copies.bring(True)
