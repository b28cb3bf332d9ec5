"""experiment.json: what a swarm agrees on, read on a store that has not synchronised yet."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rl_swarm.config import load
from rl_swarm.document import seal
from rl_swarm.errors import ConfigError
from rl_swarm.identity import load_identity
from rl_swarm.store.memory import MemoryStore
from rl_swarm.swarm import experiment as experiments
from rl_swarm.swarm.layout import Layout
from rl_swarm.swarm.signatures import sign
from rl_swarm.tasks import tasks_of
from tests.support.clocks import VirtualClock

LAYOUT = Layout("trial")
CONFIG = load({"EXPERIMENT_NAME": "trial", "TASKS": "gcd", "NODE_ID": "me"})


def test_the_first_publishes_and_the_others_take_what_it_said() -> None:
    store = MemoryStore()
    first = experiments.publish(store, LAYOUT, CONFIG, "library 1", VirtualClock())
    second = experiments.publish(store, LAYOUT, load({"TASKS": "chain_sum"}), "library 1", VirtualClock())
    assert first == second == experiments.read(store, LAYOUT)


def test_settings_that_are_half_there_are_as_if_not_there_yet_and_never_replaced() -> None:
    whole = MemoryStore()
    experiments.publish(whole, LAYOUT, CONFIG, "library 1", VirtualClock())
    half = whole.get(LAYOUT.experiment, limit=1 << 24)[:100]
    store = MemoryStore(data={LAYOUT.experiment: half})
    assert experiments.read(store, LAYOUT) is None
    with pytest.raises(ConfigError, match="wait until the store has synchronised"):
        experiments.publish(store, LAYOUT, CONFIG, "library 1", VirtualClock())
    assert store.get(LAYOUT.experiment, limit=1 << 24) == half


def test_damaged_settings_are_refused() -> None:
    store = MemoryStore()
    experiments.publish(store, LAYOUT, CONFIG, "library 1", VirtualClock())
    store.rewrite(LAYOUT.experiment, store.get(LAYOUT.experiment, limit=1 << 24).replace(b"gcd", b"bcd"))
    with pytest.raises(ConfigError, match="checksum"):
        experiments.read(store, LAYOUT)


# What a stranger may have written there


def planted(**changes: Any) -> MemoryStore:
    """A store whose experiment.json somebody has replaced by a well-sealed one of theirs."""
    store = MemoryStore()
    honest = experiments.publish(store, LAYOUT, CONFIG, "library 1", VirtualClock())
    settings = honest.settings | changes.pop("settings", {})
    store.rewrite(LAYOUT.experiment, seal(msgspec.structs.replace(honest, settings=settings, **changes)))
    return store


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"experiment": "/any/path"}, "its file says that it is '/any/path'"),
        ({"experiment": "../../x"}, "its file says"),
        ({"settings": {"NUM_TRAIN_SAMPLES": "1000000000"}}, "NUM_TRAIN_SAMPLES must be at most"),
        ({"settings": {"NUM_GENERATIONS": "257"}}, "NUM_GENERATIONS must be at most 256"),
        ({"settings": {"LD_PRELOAD": "/tmp/evil.so"}}, r"settings that this version does not share \(LD_PRELOAD"),
        ({"settings": {"RL_SWARM_HOME": "/tmp"}}, "does not share"),
        ({"settings": {"ROLLOUT_ARCHIVE_PATH": "/tmp"}}, "does not share"),
        ({"settings": {"MODEL_NAME": "/shared/evil"}}, "MODEL_NAME is neither"),
        ({"settings": {"MODEL_NAME": "../evil"}}, "MODEL_NAME is neither"),
        ({"settings": {"TASKS": "gcd," * 300}}, "more than 200 tasks"),
        ({"group_limits": (2, 10**9)}, "its groups have"),
        ({"experiment_id": "../x"}, "cannot be read"),
        ({"created_by": "x" * 65}, "cannot be read"),
    ],
)
def test_what_no_node_would_publish_is_refused_in_one_line(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as refused:
        experiments.read(planted(**changes), LAYOUT)
    assert "\n" not in str(refused.value)


def test_the_model_of_an_experiment_is_no_path_of_anybodys_machine(tmp_path: Path) -> None:
    store = MemoryStore()
    (tmp_path / "llama").mkdir()
    here = load({"EXPERIMENT_NAME": "trial", "TASKS": "gcd", "MODEL_NAME": str(tmp_path / "llama")})
    published = experiments.publish(store, LAYOUT, here, "library 1", VirtualClock())
    assert published.settings["MODEL_NAME"] == "./llama"
    experiments.check(here, published, "library 1")
    with pytest.raises(ConfigError, match="trains a model from a folder, 'llama', which is not shared: get it"):
        experiments.check(load({}, {}, published.settings), published, "library 1")


def test_code_runs_only_from_a_file_that_this_user_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = tmp_path / "shared" / "ladder.py"
    task.parent.mkdir()
    task.write_text("def question(seed, index):\n    return 'climb', '1'\n")
    founder = load({"EXPERIMENT_NAME": "trial", "TASKS": f"gcd,{task}"})
    published = experiments.publish(MemoryStore(), LAYOUT, founder, "library 1", VirtualClock())
    assert str(tmp_path) not in published.settings["TASKS"], "where it lies is nobody's business"
    monkeypatch.chdir(task.parent)  # where the experiment's './ladder.py' would be found
    joiner = load({}, {}, published.settings)
    with pytest.raises(ConfigError, match=r"runs code, the task file 'ladder.py' with hash \w{16}.* set to its path"):
        tasks_of(joiner)
    with pytest.raises(ConfigError, match="get the file from 'boss', who began the experiment, read it, and start again with"):
        tasks_of(joiner, "boss")
    copy = tmp_path / "mine" / "ladder.py"
    copy.parent.mkdir()
    copy.write_bytes(task.read_bytes())
    named = load({"TASK_FILES": str(copy)}, {}, published.settings)
    assert [spec.path for spec in tasks_of(named)] == [str(copy), None]
    copy.write_text("def question(seed, index):\n    return 'fall', '1'\n")
    with pytest.raises(ConfigError, match="which TASK_FILES does not name"):
        tasks_of(named)


def test_a_path_in_a_strangers_tasks_is_never_opened(tmp_path: Path) -> None:
    evil = tmp_path / "evil.py"
    evil.write_text("raise SystemExit('executed')")
    stranger = load({}, {}, {"TASKS": f"gcd,{evil}"})
    with pytest.raises(ConfigError, match=r"the task file 'evil.py' with hash none"):
        tasks_of(stranger)


def test_what_is_signed_by_the_founder_cannot_be_changed(tmp_path: Path) -> None:
    founder, thief = (load_identity(str(tmp_path / f"{name}.pem")) for name in ("founder", "thief"))
    store = MemoryStore()
    experiment = experiments.publish(store, LAYOUT, CONFIG, "library 1", VirtualClock(), founder)
    assert experiments.all_announcers(experiment) == {founder.public}
    read = experiments.read(store, LAYOUT, founder.public)
    assert read is not None and read.key == founder.public and read.settings == experiment.settings
    changed = msgspec.structs.replace(experiment, key=None, settings=experiment.settings | {"MAX_ROUNDS": "1"})
    for forged in (seal(changed), sign(thief, experiment.experiment_id, LAYOUT.experiment, seal(changed))):
        store.rewrite(LAYOUT.experiment, forged)
        with pytest.raises(ConfigError, match=f"the founder that you named is {founder.public}: somebody changed it"):
            experiments.read(store, LAYOUT, founder.public)
    with pytest.raises(ConfigError, match="there is no experiment 'trial' that"):
        experiments.publish(MemoryStore(), LAYOUT, replace(CONFIG, founder=founder.public), "library 1", VirtualClock(), thief)


@pytest.mark.parametrize("insisted", [True, False])
def test_naming_the_founders_key_is_no_signature(tmp_path: Path, insisted: bool) -> None:
    founder = load_identity(str(tmp_path / "founder.pem"))
    store = MemoryStore()
    honest = experiments.publish(store, LAYOUT, CONFIG, "library 1", VirtualClock(), founder)
    forged = msgspec.structs.replace(honest, key=founder.public, settings=honest.settings | {"MAX_ROUNDS": "1"})
    store.rewrite(LAYOUT.experiment, seal(forged))
    with pytest.raises(ConfigError, match=f"it names the key {founder.public}, which has not signed it"):
        experiments.read(store, LAYOUT, founder.public if insisted else None)


def test_an_address_with_the_id_takes_no_older_experiment_of_the_same_founder(tmp_path: Path) -> None:
    founder = load_identity(str(tmp_path / "founder.pem"))
    older, store = MemoryStore(), MemoryStore()
    experiments.publish(older, LAYOUT, CONFIG, "library 1", VirtualClock(), founder)
    now = experiments.publish(store, LAYOUT, CONFIG, "library 1", VirtualClock(), founder)
    address = experiments.address(store, now)
    insisted = load({"SWARM_FOUNDER": address.rpartition("#")[2]}).founder
    assert insisted == f"{founder.public}-{now.experiment_id}"
    assert experiments.read(store, LAYOUT, insisted) is not None
    store.rewrite(LAYOUT.experiment, older.get(LAYOUT.experiment, limit=1 << 20))
    assert experiments.read(store, LAYOUT, founder.public) is not None, "the key alone cannot tell them apart"
    with pytest.raises(
        ConfigError, match=f"the founder that you named is {insisted}: somebody changed it, or the key is of another"
    ):
        experiments.read(store, LAYOUT, insisted)


def test_settings_that_differ_from_the_experiments_are_named() -> None:
    shared = {"NUM_GENERATIONS": "8", "MAX_ROUNDS": "60", "NUM_TRANSPLANT_TREES": "4"}
    published = experiments.Experiment(1, "trial", "0123456789abcdef", 0.0, "", shared, "", (2, 256))
    config = load({"NUM_GENERATIONS": "4", "MAX_ROUNDS": "60"}, {}, shared)
    assert experiments.departures(config, published) == ["NUM_GENERATIONS is 4 here and 8 in the experiment"]
    assert experiments.departures(load({}, {}, shared), published) == []


@pytest.mark.parametrize(("tasks", "told"), [("easy", "easy"), ("lcm,gcd", "gcd,lcm")])
def test_who_joins_is_told_the_tasks_by_their_short_name(tasks: str, told: str) -> None:
    published = experiments.publish(MemoryStore(), LAYOUT, load({"TASKS": tasks}), "tasks 1", VirtualClock())
    assert dict(experiments.asks_for(published, None))["tasks"] == told
