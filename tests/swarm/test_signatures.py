"""Keys, signatures, and whose name is whose: also with real processes on a folder."""

import json
import os
import random
import re
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rl_swarm.document import seal
from rl_swarm.errors import BadDocument, ConfigError
from rl_swarm.extras import install_command
from rl_swarm.identity import Identity, allowed_keys, load_identity, signed_by
from rl_swarm.packing import METHODS, packed
from rl_swarm.rollout import BUNDLE_BYTES, decode, encode
from rl_swarm.store.memory import MemoryStore
from rl_swarm.swarm.exchange import Exchange
from rl_swarm.swarm.layout import Layout
from rl_swarm.swarm.pace import Pace
from rl_swarm.swarm.peers import Heartbeat, Registration, newest_heartbeat, read_registration, register
from rl_swarm.swarm.rounds import Announcement, Reward, Rounds, read_reward
from rl_swarm.swarm.signatures import Signatures
from tests.support.clocks import VirtualClock
from tests.support.processes import ROOT, LocalSwarm
from tests.swarm.test_exchange import LAYOUT, bundle, ids, make, publish

SHARED = Path("/nowhere/shared")


@pytest.fixture
def ours(tmp_path: Path) -> Identity:
    return load_identity(str(tmp_path / "ours.pem"), SHARED)


@pytest.fixture
def theirs(tmp_path: Path) -> Identity:
    return load_identity(str(tmp_path / "theirs.pem"), SHARED)


def signed(identity: Identity, node_id: str, number: int = 0) -> bytes:
    return Signatures(identity).sign(LAYOUT.bundle(number, node_id), encode(bundle(node_id, number)))


def refusal(signatures: Signatures, data: bytes, node_id: str = "w1", number: int = 0, layout: Layout = LAYOUT) -> str | None:
    try:
        signatures.check(layout.bundle(number, node_id), data, node_id)
    except BadDocument as error:
        return error.reason
    return None


# Key files


def test_a_key_is_made_once_for_its_owner_alone_and_used_again(tmp_path: Path) -> None:
    path = tmp_path / "new" / "swarm.pem"
    first = load_identity(str(path), SHARED)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_bytes().startswith(b"-----BEGIN PRIVATE KEY-----")
    assert load_identity(str(path), SHARED).public == first.public
    assert load_identity(str(path.parent), SHARED).public == first.public, "a folder stands for the swarm.pem in it"
    assert signed_by(first.public, first.sign(b"x"), b"x") and not signed_by(first.public, first.sign(b"x"), b"y")
    assert [each.name for each in path.parent.iterdir()] == ["swarm.pem"]


def test_nodes_that_start_at_once_share_the_key_that_one_of_them_makes(tmp_path: Path) -> None:
    found: list[str] = []
    load = lambda: found.append(load_identity(str(tmp_path / "swarm.pem"), SHARED).public)  # noqa: E731
    threads = [threading.Thread(target=load) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 16 and len(set(found)) == 1


def test_a_disk_without_links_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", lambda *names: (_ for _ in ()).throw(PermissionError(1, "Operation not permitted")))
    path = tmp_path / "swarm.pem"
    assert load_identity(str(path), SHARED).public == load_identity(str(path), SHARED).public
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and len(list(tmp_path.iterdir())) == 1


def other_key(kind: str) -> bytes:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519

    key = ec.generate_private_key(ec.SECP256R1()) if kind == "ec" else ed25519.Ed25519PrivateKey.generate()
    lock = serialization.BestAvailableEncryption(b"pw") if kind == "locked" else serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, lock)


@pytest.mark.parametrize("kind", ["ec", "locked", "noise"])
def test_a_file_that_is_no_plain_ed25519_key_is_refused_and_left_alone(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "swarm.pem"
    data = b"noise" if kind == "noise" else other_key(kind)
    path.touch(0o600)
    path.write_bytes(data)
    with pytest.raises(ConfigError, match="must be an Ed25519 key in PEM without a password"):
        load_identity(str(path), SHARED)
    assert path.read_bytes() == data


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_a_key_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "swarm.pem"
    load_identity(str(path), SHARED)
    path.chmod(mode)
    with pytest.raises(ConfigError, match=f"may be read by others, mode 0{mode:o}.*chmod 600"):
        load_identity(str(path), SHARED)


def test_a_key_in_the_shared_folder_is_refused_before_it_is_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="lies in the shared folder"):
        load_identity(str(tmp_path / "store" / "keys" / "swarm.pem"), tmp_path / "store")
    assert not list(tmp_path.iterdir())


def test_a_key_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="SWARM_IDENTITY cannot be used"):
        load_identity(str(tmp_path / "file" / "swarm.pem"), SHARED)


def test_allowed_keys_come_from_a_list_or_a_file(tmp_path: Path) -> None:
    a, b = "a" * 64, "0" * 64
    (tmp_path / "keys").write_text(f"# friends\n{a}  # Ann\n\n{b.upper()}\n")
    assert allowed_keys(f"{a}, {b}") == allowed_keys(str(tmp_path / "keys")) == {a: None, b: None}
    (tmp_path / "named").write_text(f"{a} worker_1  # Ann\n")
    assert allowed_keys(str(tmp_path / "named")) == {a: "worker_1"}
    (tmp_path / "wrong").write_text(f"{a}\nabc\n")
    (tmp_path / "empty").write_text("# nobody\n")
    for value, problem in (
        ("abc", "neither a list"),
        (str(tmp_path / "wrong"), "no key, got 'abc'"),
        (str(tmp_path / "empty"), "names no"),
    ):
        with pytest.raises(ConfigError, match=problem):
            allowed_keys(value)


@pytest.mark.parametrize("variable", ["SWARM_IDENTITY", "SWARM_ALLOWED_KEYS", "SWARM_REQUIRE_SIGNATURES"])
def test_without_the_library_one_line_says_what_to_install(tmp_path: Path, variable: str) -> None:
    values = {"SWARM_IDENTITY": str(tmp_path / "swarm.pem"), "SWARM_ALLOWED_KEYS": "a" * 64, "SWARM_REQUIRE_SIGNATURES": "yes"}
    code = (
        "import sys; sys.modules['cryptography'] = None; sys.argv = ['rl-swarm', 'coordinate']\n"
        "from rl_swarm.cli import main\n"
        "main()"
    )
    environment = {
        "PATH": os.environ["PATH"],
        "GDRIVE_PATH": str(tmp_path / "store"),
        "EXPERIMENT_NAME": "e",
        "HOME": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment | {variable: values[variable]}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2, done.stderr
    [said] = done.stderr.splitlines()
    expected = rf"rl-swarm: {variable} needs the library 'cryptography', which is not installed: pip install .*\[signed\]'"
    assert re.fullmatch(expected, said)


# Signatures


def test_a_signed_document_is_a_document(ours: Identity) -> None:
    data = signed(ours, "w1")
    assert decode(data) == bundle("w1", 0), "readers that know nothing of signatures read it as ever"
    assert json.loads(data)["key"] == ours.public
    assert refusal(Signatures(), data) is None


def test_without_an_identity_not_a_byte_changes() -> None:
    data = encode(bundle("w1", 0))
    assert Signatures().sign(LAYOUT.bundle(0, "w1"), data) == data


def test_a_signature_is_good_for_one_experiment_round_and_node(ours: Identity) -> None:
    data = signed(ours, "w1")
    for place in ({"layout": Layout("other")}, {"number": 1}, {"node_id": "w2"}):
        assert refusal(Signatures(), data, **place) == "bad_signature"  # type: ignore[arg-type]
    assert refusal(Signatures(experiment_id="begun again under the same name"), data) == "bad_signature"


def test_changed_content_is_refused_though_its_checksum_is_right(ours: Identity, theirs: Identity) -> None:
    from rl_swarm.document import body_of, close

    body = body_of(signed(ours, "w1"), 1 << 20)
    for old, new in ((b'"policy_version":0', b'"policy_version":9'), (ours.public.encode(), theirs.public.encode())):
        assert old in body
        assert refusal(Signatures(), close(body.replace(old, new))) == "bad_signature"


def test_a_name_belongs_to_the_first_key_also_after_a_restart(tmp_path: Path, ours: Identity, theirs: Identity) -> None:
    book = tmp_path / "keys"
    first = Signatures(book=book)
    assert refusal(first, signed(ours, "w1")) is None
    for signatures in (first, Signatures(book=book)):
        assert refusal(signatures, signed(theirs, "w1")) == "impersonation"
        assert refusal(signatures, encode(bundle("w1", 0))) == "impersonation"
        assert refusal(signatures, signed(ours, "w1")) is None
    assert refusal(first, signed(theirs, "w2"), "w2") is None, "a refused key may own another name"
    assert refusal(first, encode(bundle("w3", 0)), "w3") is None, "and who never signed need not begin"


def test_a_book_with_half_a_line_is_read_and_gone_on_with(tmp_path: Path, ours: Identity, theirs: Identity) -> None:
    book = tmp_path / "keys"
    refusal(Signatures(book=book), signed(ours, "w1"))
    book.write_text(book.read_text() + "\nw2 0123")
    assert refusal(Signatures(book=book), signed(theirs, "w2"), "w2") is None
    again = Signatures(book=book)
    assert (again.owner("w1"), again.owner("w2")) == (ours.public, theirs.public)


@pytest.mark.parametrize("method", METHODS)
def test_a_node_knows_its_own_documents_also_compressed(ours: Identity, theirs: Identity, method: str) -> None:
    signatures, key = Signatures(ours, required=True), LAYOUT.bundle(0, "w1")
    assert signatures.reclaims(key, packed(signed(ours, "w1"), method))
    assert not signatures.reclaims(key, packed(signed(theirs, "w1"), method))
    assert not signatures.reclaims(key, packed(bytes(BUNDLE_BYTES + 1), method))


def test_signatures_may_be_required_and_keys_limited(ours: Identity, theirs: Identity) -> None:
    assert refusal(Signatures(required=True), encode(bundle("w1", 0))) == "unsigned"
    limited = Signatures(allowed={ours.public: None})
    assert refusal(limited, encode(bundle("w1", 0))) == "unsigned"
    assert refusal(limited, signed(theirs, "w1")) == "key_not_allowed"
    assert refusal(limited, signed(ours, "w1")) is None, "a key that is not allowed takes no name"
    named = Signatures(allowed={ours.public: "w1", theirs.public: None})
    assert refusal(named, signed(theirs, "w1")) == "impersonation", "a name on the list is taken from the beginning"
    assert refusal(named, signed(ours, "w2"), "w2") == "key_not_allowed", "and its key has no other"
    assert refusal(named, signed(ours, "w1")) is None


def test_who_cannot_check_signatures_says_so_once_and_goes_on(monkeypatch: pytest.MonkeyPatch, ours: Identity) -> None:
    monkeypatch.setattr("rl_swarm.swarm.signatures.can_check", lambda: False)
    said: list[str] = []
    signatures = Signatures(say=said.append)
    assert [refusal(signatures, signed(ours, "w1")) for _ in range(3)] == [None] * 3
    assert said == [f"peers sign what they publish, which cannot be checked here: {install_command('signed')}"]


# In the exchange


def signing(store: MemoryStore, tmp_path: Path, identity: Identity | None = None, **settings: str) -> Exchange:
    exchange = make(store, tmp_path, **settings)
    exchange.signatures = Signatures(identity)
    return exchange


def test_an_impersonator_is_refused_and_cannot_have_its_victim_muted(tmp_path: Path, ours: Identity, theirs: Identity) -> None:
    store = MemoryStore(clock=VirtualClock())
    victim, reader = signing(store, tmp_path, ours, node_id="victim"), signing(store, tmp_path)
    for number in range(6):
        if number:
            key = LAYOUT.bundle(number, "victim", 100)
            store.put(key, Signatures(theirs).sign(key, encode(bundle("victim", number))))
            store.put(LAYOUT.bundle(number, "victim", 101), encode(bundle("victim", number)))
            store.put(LAYOUT.bundle(number, "victim", 102), encode(bundle("other", number)))
        for each in bundle("victim", number).rollouts:
            victim.offer(each, 0)
        victim.end_stage()
        assert ids(reader.gather(number, 0, 100, random.Random(number))) >= {f"victim/{number}/0/0", f"victim/{number}/0/1"}
    assert reader.rejected == {"impersonation": 10, "misplaced": 5}
    assert not reader.standings.muted("victim", 6) and reader.standings.trusted("victim")


def test_a_signed_lie_counts_against_its_signer(tmp_path: Path, theirs: Identity) -> None:
    store = MemoryStore(clock=VirtualClock())
    liar, reader = signing(store, tmp_path, theirs, node_id="liar"), signing(store, tmp_path)
    for number in range(3):
        for each in bundle("liar", number).rollouts:
            liar.offer(replace(each, question=replace(each.question, prompt="Say yes.")), 0)
        liar.end_stage()
        reader.gather(number, 0, 2, random.Random(0))
    assert reader.standings.muted("liar", 3)


def test_unsigned_peers_are_refused_and_muted_where_signatures_are_required(tmp_path: Path) -> None:
    store = MemoryStore(clock=VirtualClock())
    reader = make(store, tmp_path)
    reader.signatures = Signatures(required=True)
    for number in range(5):
        publish(store, "plain", number)
        assert reader.gather(number, 0, 2, random.Random(0)) == []
    assert reader.rejected == {"unsigned": 3}


# Real processes


@pytest.fixture
def signed_swarm(local_swarm: Callable[..., LocalSwarm]) -> LocalSwarm:
    return local_swarm(
        MAX_ROUNDS=10_000,
        NUM_TRAIN_SAMPLES=2,
        NUM_TRANSPLANT_TREES=2,
        NUM_GENERATIONS=4,
        COORDINATOR_ROUND_INTERVAL=2,
        STANDIN_SECONDS=0.3,
    )


def wait_until(condition: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)


def test_of_two_processes_with_one_name_the_reader_takes_the_one_whose_key_came_first(
    signed_swarm: LocalSwarm, tmp_path: Path
) -> None:
    swarm = signed_swarm
    # Slower than the others, so that however busy the machine is, none of them falls behind the reader's window.
    reader = swarm.start("reader", SWARM_REQUIRE_SIGNATURES="true", STANDIN_SECONDS=0.7)
    wait_until((swarm.folder / swarm.layout.experiment).exists)  # otherwise the honest node may found it, and all must sign
    honest = swarm.start("honest", SWARM_IDENTITY=tmp_path / "honest.pem")
    wait_until(lambda: any(row["external_ids"] for row in swarm.metrics("reader")))
    honest.terminate()
    assert swarm.wait(honest, 120) == 0
    public = load_identity(str(tmp_path / "honest.pem")).public
    assert f"signing with the public key {public}" in swarm.console("honest")
    home = tmp_path / "elsewhere"  # another machine: the name is free there
    others = [swarm.start("honest", SWARM_IDENTITY=tmp_path / "thief.pem", RL_SWARM_HOME=home), swarm.start("plain")]
    wait_until(lambda: {"impersonation", "unsigned"} <= swarm.metrics("reader")[-1]["rejected_total"].keys())
    for process in (reader, *others):
        process.terminate()
    assert [swarm.wait(process, 120) for process in (reader, *others)] == [0, 0, 0]
    learnt = {tuple(name.split("/")[:2]) for row in swarm.metrics("reader") for name in row["external_ids"]}
    keys = {
        json.loads(swarm.store.get(swarm.layout.bundle(int(number), node_id), limit=1 << 24))["key"] for node_id, number in learnt
    }
    assert {node_id for node_id, _ in learnt} == {"honest"} and keys == {public}
    assert next((tmp_path / "home").rglob("reader/keys")).read_text().split() == ["honest", public]
    assert not swarm.unreadable()


def test_a_key_that_others_may_read_ends_a_node_with_one_line(signed_swarm: LocalSwarm, tmp_path: Path) -> None:
    path = tmp_path / "swarm.pem"
    load_identity(str(path), SHARED)
    path.chmod(0o644)
    environment = signed_swarm.environment | {"NODE_ID": "w1", "SWARM_IDENTITY": str(path)}
    done = subprocess.run(
        [sys.executable, "-m", "rl_swarm.cli", "coordinate"], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert done.stderr == f"rl-swarm: SWARM_IDENTITY may be read by others, mode 0644, got {str(path)!r}: run chmod 600 {path}\n"


# From end to end


def founded(tmp_path: Path, ours: Identity, theirs: Identity) -> tuple[MemoryStore, Signatures, Signatures]:
    """A store, the founder's signatures, and those of a stranger who would like to be somebody else."""
    announcers = frozenset({ours.public})
    return MemoryStore(clock=VirtualClock()), *(Signatures(each, announcers=announcers) for each in (ours, theirs))  # type: ignore[return-value]


def announcement(number: int, epoch: int = 1) -> Announcement:
    return Announcement(number, "c", "s", epoch, 0.0, [], [])


def test_only_the_founder_announces_rounds_and_takes_back_what_others_put_there(
    tmp_path: Path, ours: Identity, theirs: Identity
) -> None:
    store, founder, stranger = founded(tmp_path, ours, theirs)
    forged = [seal(announcement(1, 9)), stranger.sign(LAYOUT.round(1), seal(announcement(1, 9))), b"half a fi"]
    rounds = Rounds(store, LAYOUT, signatures=founder)
    for number, data in enumerate(forged, start=1):
        store.put(LAYOUT.round(number), data)
    moved = founder.sign(LAYOUT.round(0), seal(announcement(7)))
    store.put(LAYOUT.round(7), moved)
    assert rounds.survey() is None and all(rounds.look_up(number) is None for number in (1, 2, 3, 7))
    assert founder.refused["unsigned"] >= 1 and founder.refused["key_not_allowed"] + founder.refused["bad_signature"] >= 2
    for number in range(5):
        assert rounds.announce(announcement(number)) == announcement(number)
    reader = Rounds(store, LAYOUT, signatures=Signatures(announcers=frozenset({ours.public})))
    assert reader.survey() == announcement(4)
    assert Rounds(store, LAYOUT).survey() is not None, "whoever does not know the key reads them all the same"


def test_nobody_submits_registers_or_beats_for_another(tmp_path: Path, ours: Identity, theirs: Identity) -> None:
    store, mine, stranger = founded(tmp_path, ours, theirs)
    reader = Signatures(announcers=frozenset({ours.public}))
    register(store, LAYOUT, Registration("w1", "worker", 0.0, "nano", "w1", "0", "s"), mine)
    assert read_registration(store, LAYOUT, "w1", reader) is not None
    reward, beat = Reward("w1", 3, 0.5, 4, 0.0), Heartbeat("w1", 5, 0.0, "training", 3)
    for sign in (stranger.sign, lambda key, data: data):
        store.rewrite(LAYOUT.reward(3, "w1"), sign(LAYOUT.reward(3, "w1"), seal(reward)))
        store.rewrite(LAYOUT.heartbeat("w1", 5), sign(LAYOUT.heartbeat("w1", 5), seal(beat)))
        assert read_reward(store, LAYOUT, 3, 0, "w1", reader) is None
        assert newest_heartbeat(store, LAYOUT, "w1", reader) is None
    store.rewrite(LAYOUT.reward(3, "w1"), mine.sign(LAYOUT.reward(3, "w1"), seal(reward)))
    assert read_reward(store, LAYOUT, 3, 0, "w1", reader) == reward
    assert reader.refused == {"impersonation": 4}
    store.rewrite(LAYOUT.peer("w1"), seal(Registration("w1", "worker", 0.0, "evil", "w1", "0", "s")))
    register(store, LAYOUT, Registration("w1", "worker", 0.0, "nano", "w1", "0", "s"), mine)
    found = read_registration(store, LAYOUT, "w1", reader)
    assert found is not None and found.model == "nano", "what nobody has signed is replaced"
    with pytest.raises(ConfigError, match="belongs to another key in this experiment"):
        register(store, LAYOUT, Registration("w1", "worker", 0.0, "nano", "w1", "0", "s"), stranger)


def test_where_rounds_are_signed_a_worker_starts_where_no_stranger_says(tmp_path: Path, ours: Identity, theirs: Identity) -> None:
    """There is no coordinator: a reward of a stranger's own for the last round would end every worker that starts."""
    store, founder, stranger = founded(tmp_path, ours, theirs)
    for node_id, signatures, number in (("w1", founder, 7), ("newcomer", stranger, 1999)):
        register(store, LAYOUT, registration(node_id), signatures)
        key = LAYOUT.reward(number, node_id)
        store.put(key, signatures.sign(key, seal(Reward(node_id, number, 0.5, 4, 0.0))))
    for me, expected in (("w2", 7), ("w1", None)):
        rounds = Rounds(store, LAYOUT, 2000, Signatures(announcers=frozenset({ours.public})))
        assert rounds.reached_by_others(me, -1, random.Random(0)) == expected
        assert Pace(rounds, store.clock, lambda *_, **__: None, me, 60.0).first(3) == (expected or 3)


def owned(identity: Identity, *, announcers: tuple[str, ...] = ("f" * 64,), **options: Any) -> Signatures:
    """The signatures of a node in an experiment that somebody else has founded."""
    return Signatures(identity, announcers=frozenset(announcers), **options)


def registration(node_id: str = "w1") -> Registration:
    return Registration(node_id, "worker", 0.0, "nano", node_id, "0", "s")


def whose(store: MemoryStore, node_id: str = "w1") -> str | None:
    key = LAYOUT.peer(node_id)
    return Signatures().signer(key, store.get(key, limit=1 << 20))


def test_an_owner_takes_its_registration_back_also_after_a_restart(tmp_path: Path, ours: Identity, theirs: Identity) -> None:
    store, book = MemoryStore(clock=VirtualClock()), tmp_path / "book"
    register(store, LAYOUT, registration(), owned(ours, book=book))
    store.rewrite(LAYOUT.peer("w1"), Signatures(theirs).sign(LAYOUT.peer("w1"), seal(registration())))
    register(store, LAYOUT, registration(), owned(ours, book=book))
    assert whose(store) == ours.public


def test_a_coordinator_and_who_is_on_the_list_take_a_registration_back(ours: Identity, theirs: Identity) -> None:
    forged = Signatures(theirs).sign(LAYOUT.peer("w1"), seal(registration()))
    for signatures in (
        owned(ours, announcers=(ours.public,)),
        owned(ours, allowed={ours.public: None}),
        owned(ours, allowed={ours.public: "w1", theirs.public: "w2"}),
    ):
        store = MemoryStore(clock=VirtualClock(), data={LAYOUT.peer("w1"): forged})
        register(store, LAYOUT, registration(), signatures)
        assert whose(store) == ours.public


def test_a_name_that_another_key_had_first_is_refused(ours: Identity, theirs: Identity) -> None:
    forged = Signatures(theirs).sign(LAYOUT.peer("w1"), seal(registration()))
    for signatures in (owned(ours), owned(ours, allowed={ours.public: None, theirs.public: None})):
        store = MemoryStore(clock=VirtualClock(), data={LAYOUT.peer("w1"): forged})
        with pytest.raises(ConfigError, match=f"NODE_ID 'w1' belongs to another key in this experiment, {theirs.public}"):
            register(store, LAYOUT, registration(), signatures)
        assert whose(store) == theirs.public
