"""Remove or archive old rollouts of an experiment by hand: the command `prune`. Imports no torch."""

from collections.abc import Callable
from dataclasses import replace

from rich.text import Text

from rl_swarm.errors import ConfigError
from rl_swarm.identity import load_identity
from rl_swarm.randomness import generator
from rl_swarm.store import folder_of, open_store
from rl_swarm.swarm import experiment as experiments
from rl_swarm.swarm.archive import open_archive
from rl_swarm.swarm.peers import read_registration
from rl_swarm.swarm.removals import BY_HAND
from rl_swarm.swarm.retention import Pruned, Retention, policy_of
from rl_swarm.swarm.rounds import Rounds
from rl_swarm.swarm.signatures import Signatures
from rl_swarm.text import counted, visible
from rl_swarm.tools.opening import Run


def prune(run: Run, dry_run: bool, say: Callable[[str], None]) -> Pruned:
    """Remove everyone's rollouts beyond the limits of the settings, or only count them; `say` is given remarks."""
    signatures = _signatures(run)
    store = run.store if dry_run else open_store(run.config.store_url)
    archive = open_archive(run.config, store, make=not dry_run) if run.config.archive else None
    retention = Retention(
        store,
        run.layout,
        store.clock,
        BY_HAND,
        policy_of(run.config),
        run.config.round_interval,
        archive=archive,
        signatures=signatures,
        tell=lambda event, line, **details: say(line) if line else None,
        patient=False,
    )
    newest = newest_round(run, signatures)
    if dry_run:
        return retention.plan(newest)
    retention.reached(newest)
    return retention.clean(all_of_it=True)


def newest_round(run: Run, signatures: Signatures) -> int:
    """The newest round that was announced, or that a registered worker has done; -1 if there is none."""
    rounds = Rounds(run.store, run.layout, run.config.max_rounds, signatures)
    announced = rounds.survey()
    number = announced.round if announced else -1

    def is_worker(node_id: str) -> bool:
        found = read_registration(run.store, run.layout, node_id, signatures)
        return found is not None and found.node_role == "worker"

    reached = None if signatures.announcers else rounds.reached(number, is_worker, generator("prune", number))
    return number if reached is None else reached


def _signatures(run: Run) -> Signatures:
    """Signatures of whoever may say that rollouts were removed on purpose; raise ConfigError for somebody else."""
    identity = load_identity(run.config.identity, folder_of(run.config.store_url)) if run.config.identity else None
    _, found = experiments.reader(run.store, run.layout, run.config.founder)
    if found.announcers and (identity is None or identity.public not in found.announcers):
        raise ConfigError(
            f"the experiment {run.config.experiment_name!r} is signed, and only its founder may remove rollouts of others: set "
            "SWARM_IDENTITY to that key; nodes remove their own with ROLLOUT_CLEANUP_ENABLED"
        )
    return replace(found, identity=identity)


def sentence(run: Run, pruned: Pruned, dry_run: bool) -> Text:
    """Say what was removed, for people."""
    name = run.config.experiment_name
    if not pruned.files:
        return Text(f"{name}: there is nothing to remove")
    first, last = pruned.rounds[0], pruned.rounds[-1]
    rounds = f"{counted(len(pruned.rounds), 'round')}, {first} to {last}" if last > first else f"round {first}"
    done = f"archived in {run.config.archive_path}" if run.config.archive else "removed"
    verb = "would be" if dry_run else "is" if pruned.files == 1 else "are"
    return Text(visible(f"{name}: {counted(pruned.files, 'file')} of {rounds}, {pruned.bytes / 1e6:.1f} MB, {verb} {done}"))
