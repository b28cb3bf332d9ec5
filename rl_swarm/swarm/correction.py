"""Correct an experiment in which nobody has played: remove it, so that it can be published anew with another id.

A played experiment is never corrected. Listings may lag, so a node may have played unseen: its documents have the old id, and
nobody takes them for the new experiment's.
"""

from collections.abc import Set

from rl_swarm.config import Config
from rl_swarm.errors import ConfigError
from rl_swarm.store import Store, is_key
from rl_swarm.swarm.experiment import LONGEST_SHOWN, Experiment, published_settings, read
from rl_swarm.swarm.layout import JOURNALS, Layout

LIBRARY = "the task library"
METRICS = {JOURNALS[0], f"{Layout.segments(JOURNALS[0])}/"}


def differences(config: Config, experiment: Experiment, tasks_version: str) -> list[str]:
    """What `config` would change about an experiment, a few words each."""
    there = experiment.settings | {LIBRARY: experiment.tasks_version}
    wanted = published_settings(config) | {LIBRARY: tasks_version}
    return [
        f"{name} is now {value[:LONGEST_SHOWN]!r}, was {there.get(name, '')[:LONGEST_SHOWN]!r}"
        for name, value in wanted.items()
        if value != there.get(name)
    ]


def check_correctable(store: Store, layout: Layout, experiment: Experiment, own_key: str | None) -> None:
    """Raise ConfigError unless no round was played and, where the experiment is signed, this is its founder."""
    if experiment.key and experiment.key != own_key:
        raise ConfigError(
            f"the experiment {experiment.experiment!r} is signed with {experiment.key}, and only its founder may correct it: "
            "set SWARM_IDENTITY to that key, or choose another EXPERIMENT_NAME"
        )
    if played(store, layout):
        raise ConfigError(
            f"the experiment {experiment.experiment!r} was played and cannot be corrected any more: choose another EXPERIMENT_NAME"
        )


def played(store: Store, layout: Layout) -> bool:
    """Whether a node has left anything of a round: rollouts, rewards, checkpoints or metrics."""
    if any(store.list(folder) for folder in (layout.rollouts, layout.rewards, layout.checkpoints)):
        return True
    nodes = (name.rstrip("/") for name in store.list(layout.logs) if name.endswith("/") and is_key(name))
    return any(METRICS & set(store.list(f"{layout.logs}/{node}")) for node in nodes)


def remove(store: Store, layout: Layout, experiment: Experiment) -> None:
    """Remove all that was written of an experiment, its settings last, and those only if nobody has corrected them meanwhile."""
    remove_below(store, layout.root, {layout.experiment})
    if _same(store, layout, experiment):
        store.delete(layout.experiment)
    if _same(store, layout, experiment):
        raise ConfigError(f"{layout.experiment} cannot be removed by this user: let its owner correct it, or choose another name")


def remove_below(store: Store, root: str, kept: Set[str] = frozenset()) -> int:
    """Remove all files below a folder, and the folders, but the keys and folders that are `kept`; return the number of files."""
    folders, removed = [root], 0
    for folder in folders:  # grows meanwhile
        for name in dict.fromkeys(store.list(folder)):
            key = f"{folder}/{name}".rstrip("/")
            if not is_key(key) or key in kept:
                continue
            if name.endswith("/"):
                folders.append(key)
            else:
                store.delete(key)
                removed += 1
    for folder in reversed(folders):
        store.remove_folder(folder)
    return removed


def _same(store: Store, layout: Layout, experiment: Experiment) -> bool:
    found = read(store, layout)
    return found is not None and found.experiment_id == experiment.experiment_id


def check_current(store: Store, layout: Layout, experiment: Experiment) -> None:
    """Raise ConfigError if the experiment was corrected since this node read it.

    A correction names the ids that it replaces and, of a signed experiment, has the founder's signature. Any other file there, such
    as a damaged one or an older one that somebody put back, stops nobody.
    """
    try:
        found = read(store, layout, experiment.key)
    except ConfigError:
        return
    if found and experiment.experiment_id in found.corrects:
        raise ConfigError(
            f"the experiment {experiment.experiment!r} was corrected, its id is now {found.experiment_id}, this node has "
            f"{experiment.experiment_id}: start the node again to take part"
        )
