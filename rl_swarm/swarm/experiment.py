"""The settings that a swarm must agree on: the first node publishes them, all others take them from there."""

import re
import secrets
from collections.abc import Iterator
from typing import Annotated

import msgspec
from msgspec import Meta

from rl_swarm.clock import Clock
from rl_swarm.config import SETTINGS, SHARED_VARIABLES, Config, load, model_folder, shared_settings
from rl_swarm.document import SCHEMA, SMALL_BYTES, seal, unseal
from rl_swarm.errors import BadDocument, ConfigError, Incomplete, NotFound
from rl_swarm.identity import Identity, allowed_keys, can_check
from rl_swarm.rollout import GROUP_LIMITS
from rl_swarm.store import Store, folder_of, is_key
from rl_swarm.swarm.layout import EXPERIMENTS, Layout
from rl_swarm.swarm.signatures import Signatures, sign, signer
from rl_swarm.tasks import canonical, named, nearest, tasks_of

Text = Annotated[str, Meta(max_length=200)]
ExperimentId = Annotated[str, Meta(pattern=r"^[0-9a-f]{8,64}$")]
PublicKey = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]
MODEL = re.compile(r"(\./)?[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?", re.ASCII)  # on the hub, or the name of a folder
MOST_TASKS, LONGEST_TASKS, LONGEST_SETTING, LONGEST_SHOWN = 200, 20_000, 300, 300
MOST_CORRECTIONS = 100
CORRECT = "correct it with --correct if no round was played"
OWN, EXTERNAL, GROUP, LENGTH = "NUM_TRAIN_SAMPLES", "NUM_TRANSPLANT_TREES", "NUM_GENERATIONS", "MAX_NEW_TOKENS"


class Experiment(msgspec.Struct, frozen=True, omit_defaults=True):
    """`key` is the founder's public key if the document is signed, checked by `read`. `announcers` are other announcers' keys.

    `corrects` has the ids of experiments of this name that it has replaced.
    """

    schema: int
    experiment: Annotated[str, Meta(max_length=64)]
    experiment_id: ExperimentId
    created_at: float
    created_by: Annotated[str, Meta(max_length=64)]
    settings: Annotated[dict[str, str], Meta(max_length=100)]
    tasks_version: Text
    group_limits: tuple[int, int]
    announcers: Annotated[tuple[PublicKey, ...], Meta(max_length=100)] = ()
    corrects: Annotated[tuple[ExperimentId, ...], Meta(max_length=MOST_CORRECTIONS)] = ()
    key: PublicKey | None = None
    signature: Annotated[str, Meta(max_length=128)] | None = None


def read(store: Store, layout: Layout, founder: str | None = None) -> Experiment | None:
    """Read the experiment's settings; None while they are missing or incomplete.

    A stranger may have written them: raise ConfigError if no node of ours would have published them, or if `founder` is given and
    has not signed them.
    """
    try:
        data = store.get(layout.experiment, limit=SMALL_BYTES)
        found = unseal(data, Experiment)
        if found.key and (founder or can_check()) and signer(found.experiment_id, layout.experiment, data) != found.key:
            raise BadDocument("unsigned", f"it names the key {found.key}, which has not signed it")
    except (NotFound, Incomplete):
        return None
    except BadDocument as error:
        raise ConfigError(f"{layout.experiment} cannot be read ({error}): it was damaged or changed, choose another name") from None
    public, _, experiment_id = (founder or "").partition("-")
    if founder and (found.key != public or not found.experiment_id.startswith(experiment_id)):
        whose = f"signed with {found.key}" if found.key else "not signed"
        raise ConfigError(
            f"{layout.experiment} is {whose}, id {found.experiment_id}, the founder that you named is {founder}: "
            "somebody changed it, or the key is of another experiment"
        )
    wrong = f"the experiment {layout.experiment_name!r} must not be joined"
    try:
        fault = next(_faults(found, layout), None)
    except ConfigError as error:
        raise ConfigError(f"{wrong}, {error}") from None
    if fault:
        raise ConfigError(f"{wrong}, {fault}: it was damaged or changed, ask whoever started it")
    return found


def names(store: Store) -> list[str]:
    """The names of the experiments in a store, also of those in which nobody has played."""
    return [name.rstrip("/") for name in store.list(EXPERIMENTS) if name.endswith("/") and is_key(name)]


def require(store: Store, layout: Layout) -> None:
    """Raise ConfigError, with the nearest names in the store, if there is no such experiment."""
    if store.list(layout.root) or read(store, layout):  # a listing may lag
        return
    known = names(store)
    remedy = nearest(layout.experiment_name, known, most=3) if known else "none has begun there"
    if not remedy.endswith("?"):  # no misspelt name
        remedy += "; its founder must start it first, with 'rl-swarm coordinate' or 'rl-swarm work'"
    raise ConfigError(f"there is no experiment {layout.experiment_name!r} in {store.url!r}: {remedy}")


def existing(store: Store, layout: Layout, founder: str | None = None) -> Experiment:
    """Read the settings of an experiment that must exist; raise ConfigError if it does not, or cannot be read yet."""
    require(store, layout)
    found = read(store, layout, founder)
    if found is None:
        raise ConfigError(f"{layout.experiment} cannot be read yet: wait until the store has synchronised")
    return found


def _faults(found: Experiment, layout: Layout) -> Iterator[str]:
    """Fields out of bounds: folders, names and work follow from them. Raises ConfigError for a setting that is none."""
    if found.experiment != layout.experiment_name:
        yield f"its file says that it is {found.experiment[:80]!r}"
    if not GROUP_LIMITS[0] <= found.group_limits[0] <= found.group_limits[1] <= GROUP_LIMITS[1]:
        yield f"its groups have {found.group_limits} completions, {GROUP_LIMITS} are the limits"
    if unknown := found.settings.keys() - SHARED_VARIABLES:
        yield f"it has settings that this version does not share ({', '.join(sorted(unknown)[:3])})"
    for name, value in found.settings.items():
        if len(value) > (most := LONGEST_TASKS if name == "TASKS" else LONGEST_SETTING):
            yield f"its {name} has {len(value)} characters, {most} are the most"
    config = load({}, {}, found.settings)
    if not MODEL.fullmatch(config.model):
        yield f"its MODEL_NAME is neither on the hub nor a name, got {config.model[:80]!r}"
    if config.tasks.count(",") > MOST_TASKS:
        yield f"it has more than {MOST_TASKS} tasks"


def publish(
    store: Store,
    layout: Layout,
    config: Config,
    tasks_version: str,
    clock: Clock,
    identity: Identity | None = None,
    removed: Experiment | None = None,
) -> Experiment:
    """Write experiment.json unless it exists, signed if there is an identity; return the one that counts.

    It corrects the one that was `removed`, if any. Raises ConfigError for settings that no reader would accept.
    """
    existing = read(store, layout, config.founder)
    if existing is None:
        if config.founder and (identity is None or identity.public != config.founder):
            raise ConfigError(
                f"there is no experiment {layout.experiment_name!r} that {config.founder} has signed: check EXPERIMENT_NAME, "
                "GDRIVE_PATH and the founder's key"
            )
        mine = Experiment(
            schema=SCHEMA,
            experiment=layout.experiment_name,
            experiment_id=secrets.token_hex(8),
            created_at=clock.wall(),
            created_by=config.node_id or "",
            settings=published_settings(config),
            tasks_version=tasks_version,
            group_limits=GROUP_LIMITS,
            announcers=tuple(sorted(allowed_keys(config.coordinator_keys, "SWARM_COORDINATOR_KEYS")))
            if config.coordinator_keys
            else (),
            corrects=(*removed.corrects, removed.experiment_id)[-MOST_CORRECTIONS:] if removed else (),
        )
        if fault := next(_faults(mine, layout), None):
            raise ConfigError(f"the experiment {layout.experiment_name!r} cannot be published, {fault}: choose another")
        data = seal(mine) if identity is None else sign(identity, mine.experiment_id, layout.experiment, seal(mine))
        written = store.put(layout.experiment, data)
        if written and not store.exclusive:
            clock.sleep(store.settle_seconds)  # another node may have been told the same
        if written and store.exclusive:
            return mine if identity is None else msgspec.structs.replace(mine, key=identity.public)
        existing = read(store, layout, config.founder)
    if existing is None:
        raise ConfigError(f"{layout.experiment} exists and cannot be read: wait until the store has synchronised, then start again")
    return existing


def published_settings(config: Config) -> dict[str, str]:
    return shared_settings(config) | {"TASKS": canonical(tasks_of(config)), "MODEL_NAME": public_model(config.model)}


def reader(store: Store, layout: Layout, founder: str | None = None) -> tuple[Experiment | None, Signatures]:
    """The experiment, if it can be used, and the signatures for a reader of its run.

    If its rounds are not signed, or cannot be checked here, anybody may announce them. Raises ConfigError if the
    experiment is not `founder`'s.
    """
    try:
        found = read(store, layout, founder)
    except ConfigError:
        if founder:
            raise
        found = None
    if found is None or not can_check():
        return found, Signatures()
    return found, Signatures(experiment_id=found.experiment_id, announcers=all_announcers(found))


def address(store: Store, experiment: Experiment) -> str:
    """The address that others join with. It includes the id: the founder may have signed an older experiment of this name."""
    folder = folder_of(store.url)
    place = folder.absolute() if folder else store.url
    signed = f"#{experiment.key}-{experiment.experiment_id}" if experiment.key else ""
    return f"{place}/{experiment.experiment}{signed}"


def all_announcers(experiment: Experiment) -> frozenset[str]:
    """The founder's and all other public keys that may announce rounds; none if the experiment is not signed, so anybody may."""
    return frozenset((experiment.key, *experiment.announcers)) if experiment.key else frozenset()


def check_announcer(role: str, signatures: Signatures) -> None:
    """Stop a coordinator whose key may not announce rounds."""
    if role == "coordinator" and signatures.announcers and signatures.public not in signatures.announcers:
        raise ConfigError(
            f"SWARM_IDENTITY may not announce rounds in this experiment, its key is {signatures.public}: use the founder's, or "
            "have the experiment started with SWARM_COORDINATOR_KEYS that name this one"
        )


def asks_for(experiment: Experiment, founder: str | None) -> list[tuple[str, str]]:
    """What taking part means, as names and values, for people who are about to join."""
    settings = experiment.settings
    tasks = settings.get("TASKS", "")
    name = named(tasks)
    code = [entry.rpartition("/")[2] for entry in tasks.split(",") if ".py@" in entry]
    sharing = (f"{word} {settings.get(name, '?')}" for word, name in (("I", OWN), ("J", EXTERNAL), ("G", GROUP)))
    signed = f"{experiment.key}, " + ("the founder that you named" if founder else "whom you may insist on by #KEY in the address")
    begun = f", begun by {experiment.created_by}" if experiment.created_by else ""
    return [
        ("experiment", f"{experiment.experiment}, id {experiment.experiment_id[:8]}{begun}"),
        ("model", settings.get("MODEL_NAME", "?")),
        ("tasks", name if len(name) <= LONGEST_SHOWN else name[:LONGEST_SHOWN] + " …"),
        ("code", ", ".join(code) if code else "none"),
        ("rounds", f"{settings.get('MAX_ROUNDS', '?')}, {', '.join(sharing)}, completions of {settings.get(LENGTH, '?')} tokens"),
        ("signed by", signed if experiment.key else "nobody: whoever can write to the folder may have written this"),
    ]


def departures(config: Config, experiment: Experiment) -> list[str]:
    """Settings of this node, set by its user, that differ from what the experiment shares. They are allowed, and worth a line."""
    found = []
    for name, item in SETTINGS.items():
        theirs = experiment.settings.get(item.variable)
        if item.shared and config.explicit(name) and theirs is not None and name not in ("tasks", "model"):
            ours = getattr(config, name)
            if ours != item.parse(theirs):
                found.append(f"{item.variable} is {ours} here and {theirs} in the experiment")
    return found


def public_model(name: str) -> str:
    """The name of a model for others: of a folder only the last part, marked as a folder."""
    folder = model_folder(name)
    return f"./{folder.name}" if folder.is_dir() or folder.is_absolute() or name.startswith((".", "~")) else name


def check_model(config: Config, experiment: Experiment) -> None:
    """Stop a command that needs the experiment's model if that is somebody's folder."""
    if not config.explicit("model") and config.model.startswith("./"):
        raise ConfigError(
            f"the experiment {experiment.experiment!r} trains a model from a folder, {config.model[2:]!r}, which is not shared: "
            "get it, and set MODEL_NAME to the folder"
        )


def check(config: Config, experiment: Experiment, tasks_version: str) -> None:
    """Stop a node whose settings contradict the experiment: it and its peers could not check each other's rollouts."""
    agreed = experiment.settings.get("TASKS")
    if config.explicit("tasks") and canonical(tasks_of(config)) != agreed:
        raise ConfigError(
            f"TASKS contradicts the experiment {experiment.experiment!r}, which has {agreed!r}, got {config.tasks!r}: "
            f"leave TASKS out to take the experiment's, {CORRECT}, or choose another EXPERIMENT_NAME"
        )
    least, most = experiment.group_limits
    if not least <= config.group_size <= most:
        raise ConfigError(
            f"NUM_GENERATIONS must be {least} to {most} in the experiment {experiment.experiment!r}, got {config.group_size}: "
            "peers would refuse such rollouts"
        )
    check_model(config, experiment)
    if tasks_version != experiment.tasks_version:
        raise ConfigError(
            f"the task library is {tasks_version!r} here and {experiment.tasks_version!r} in the experiment "
            f"{experiment.experiment!r}: install the same version, or peers cannot check each other's questions; or {CORRECT}"
        )
