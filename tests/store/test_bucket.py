"""Buckets on a real S3 server: the contract, many writers, pages, large files, credentials, and errors in one line."""

import json
import re
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import obstore
import pytest

from rl_swarm.config import load
from rl_swarm.errors import ConfigError, LibraryError, NotFound, StoreAway
from rl_swarm.extras import install_command
from rl_swarm.store import Store, open_store
from rl_swarm.store.agreement import ANSWER
from rl_swarm.store.bucket import PART_BYTES, BucketStore
from rl_swarm.store.candidates import CandidateBucket
from rl_swarm.store.clouds import aws_profile
from rl_swarm.tools.doctor.store import StoreExam
from tests.store.store_contract import StoreContract
from tests.support.fault_proxy import fault_proxy
from tests.support.s3_server import BUCKET, SECRET, make_client, s3_server, variables

WRITERS = 32


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with s3_server() as endpoint:
        yield endpoint


@pytest.fixture
def place(server: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """A path of its own for each test, in the bucket of all; nobody has tried yet what the service honours."""
    for name, value in variables(server).items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/{abs(hash(request.node.nodeid))}"


def agree(server: str, place: str, conditional: bool) -> None:
    path = place.removeprefix(f"s3://{BUCKET}/")
    obstore.put(make_client(server, BUCKET), f"{path}/{ANSWER}", json.dumps({"conditional_create": conditional}).encode())


class TestBucket(StoreContract):
    removes_folders = False

    @pytest.fixture
    def store(self, place: str, server: str) -> Store:
        agree(server, place, True)
        return open_store(place)

    def second(self, store: Store) -> Store:
        return open_store(store.url)


class TestCandidates(TestBucket):
    """The same where the service is known not to honour conditional creation, though this one would."""

    @pytest.fixture
    def store(self, place: str, server: str) -> Store:
        agree(server, place, False)
        store = open_store(place)
        assert isinstance(store, CandidateBucket)
        return store

    # Writers are not told apart here: all readers choose the same one, which the tests below look at.
    test_of_many_writers_one_wins_and_readers_see_it_whole = None  # type: ignore[assignment]

    def test_of_32_writers_one_wins(self, store: Store) -> None:
        """Every reader, whenever it reads, finds the same document once the writers are done."""
        told = self.race([self.second(store) for _ in range(WRITERS)], "race/x")
        found = {self.second(store).get("race/x", limit=1 << 24) for _ in range(5)}
        assert len(found) == 1
        [winner] = found
        assert winner in {bytes([number]) * 5000 for number in told}
        assert store.list("race") == ["x"]
        assert not store.put("race/x", b"late")
        assert store.get("race/x", limit=1 << 24) == winner

    def test_the_earliest_candidate_wins_and_then_the_smallest_name(self, store: Store) -> None:
        assert isinstance(store, CandidateBucket)
        store.put("a/x", b"first")
        [first] = store._candidates("a/x")
        obstore.put(store._small, "a/x=0", b"planted later, with the smallest name")
        names = store._candidates("a/x")
        dates = {entry["path"]: entry["last_modified"] for entry in obstore.list_with_delimiter(store._small, "a")["objects"]}
        assert names == sorted(names, key=lambda name: (dates[name], name))
        store.rewrite("a/x", b"second")
        assert store.get("a/x", limit=100) == b"second"
        store.delete("a/x")
        assert store.list("a") == []
        assert first in names


def test_what_the_first_writer_found_out_is_remembered(place: str, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(place)
    assert type(store) is BucketStore
    store.put("a/x", b"1")
    path = place.removeprefix(f"s3://{BUCKET}/")
    client = make_client(server, BUCKET)
    assert bytes(obstore.get(client, f"{path}/{ANSWER}").bytes()) == b'{"conditional_create": true}'
    assert {entry["path"] for entry in obstore.list(client, path).collect()} == {f"{path}/{ANSWER}", f"{path}/a/x"}
    monkeypatch.setattr("rl_swarm.store.agreement.try_it", None)  # nobody tries again
    assert open_store(place).get("a/x", limit=10) == b"1"


def test_a_listing_has_more_than_one_page(place: str) -> None:
    store = open_store(place)
    names = [f"{number:05d}" for number in range(1_100)]
    numbers = iter(names)
    guard = threading.Lock()

    def write() -> None:
        while True:
            with guard:
                name = next(numbers, None)
            if name is None:
                return
            store.put(f"many/{name}", b"")

    threads = [threading.Thread(target=write) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.list("many") == names


def test_a_file_larger_than_a_part_goes_there_and_back(place: str, tmp_path: Path) -> None:
    store = open_store(place)
    source = tmp_path / "source"
    source.write_bytes(bytes(range(256)) * (2 * PART_BYTES // 256) + b"end")
    assert store.put_file("c/large.pt", source)
    assert not store.put_file("c/large.pt", source)
    store.get_file("c/large.pt", tmp_path / "target", limit=1 << 30)
    assert (tmp_path / "target").read_bytes() == source.read_bytes()


def test_a_bucket_without_a_path(server: str, place: str) -> None:
    store = open_store(f"s3://{BUCKET}")
    assert store.url == f"s3://{BUCKET}"
    store.put("top/x", b"1")
    assert store.list("top") == ["x"]


def test_wrong_credentials_a_missing_bucket_and_no_server_are_one_line(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="a bucket that does not exist, got 's3://nosuchbucket'"):
        open_store("s3://nosuchbucket", writable=False)
    with pytest.raises(ConfigError, match="names no bucket"):
        open_store("s3://")
    with monkeypatch.context() as wrong:
        wrong.setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret")
        with pytest.raises(ConfigError, match="does not let this user in: set AWS_ACCESS_KEY_ID") as refused:
            open_store(place)
        assert "\n" not in str(refused.value)
    store = open_store(place)
    with monkeypatch.context() as gone:
        gone.setattr("rl_swarm.store.clouds.RETRIES", {"max_retries": 0})
        gone.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
        with pytest.raises(StoreAway, match="does not answer") as away:
            open_store(place)
        assert "\n" not in str(away.value) and SECRET not in str(away.value)
    with pytest.raises(NotFound):
        store.get("a/x", limit=1)


@pytest.mark.parametrize("url", ["s3://KEY:s3cret@bucket/path", "az://container/path?sv=2&sig=s3cret", "gdrive://s3cret@folder"])
def test_credentials_in_a_url_are_refused_and_not_shown(url: str) -> None:
    with pytest.raises(ConfigError, match="must not hold credentials") as refused:
        open_store(url)
    assert "s3cret" not in str(refused.value)


def test_profiles_of_aws(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("[profile other]\nregion = eu-west-1\nendpoint_url = https://s3.example\n")
    (tmp_path / "credentials").write_text(
        "[default]\naws_access_key_id = A\naws_secret_access_key = B\n"
        "[other]\naws_access_key_id = C\naws_secret_access_key = D\naws_session_token = E\n"
    )
    files = {"AWS_CONFIG_FILE": str(tmp_path / "config"), "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials")}
    assert aws_profile(files) == {"access_key_id": "A", "secret_access_key": "B"}
    assert aws_profile(files | {"AWS_PROFILE": "other"}) == {
        "access_key_id": "C",
        "secret_access_key": "D",
        "session_token": "E",
        "region": "eu-west-1",
        "endpoint": "https://s3.example",
    }
    assert aws_profile(files | {"AWS_PROFILE": "other", "AWS_ACCESS_KEY_ID": "X", "AWS_REGION": "r"}) == {
        "endpoint": "https://s3.example"
    }
    (tmp_path / "config").write_text("no section")
    with pytest.raises(ConfigError, match="no file of profiles"):
        aws_profile(files)


def ignoring_the_condition(real: Any) -> Any:
    """`obstore.put` against a service that ignores If-None-Match, as `rclone serve s3` does."""

    def put(client: Any, name: str, data: Any, *, mode: str = "overwrite", **options: Any) -> Any:
        return real(client, name, data, **options)

    return put


def test_a_service_that_ignores_the_condition_is_found_out_by_trying(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(obstore, "put", ignoring_the_condition(obstore.put))
    store = open_store(place)
    assert type(store) is CandidateBucket
    assert store.put("a/x", b"1") and not open_store(place).put("a/x", b"2")
    assert type(open_store(place, writable=False)) is CandidateBucket


def test_a_page_of_a_crowded_folder_is_one_request(server: str, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    client, path = make_client(server, BUCKET), place.removeprefix(f"s3://{BUCKET}/")
    names = [f"n{number:04d}.json" for number in range(1_100)]
    with ThreadPoolExecutor(16) as threads:
        list(threads.map(lambda name: obstore.put(client, f"{path}/a/{name}", b""), names))
    agree(server, place, True)
    with fault_proxy(server, seed=1) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        store = open_store(place)
        for after, found in (("", names[:1_000]), ("n0050.jso", names[50:1_050]), ("n1000.json", names[1_001:])):
            before = sum(proxy.done.values())
            assert store.list_from("a", after, 1_000) == found
            assert sum(proxy.done.values()) - before == 1


def test_answers_that_are_lost_mislead_nobody(server: str, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by the process test: a node whose answers were lost took the service for one that ignores the condition, and founded
    an experiment of its own beside the others'."""
    with fault_proxy(server, seed=2, lost=0.4) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        kinds = {type(open_store(f"{place}/{number}")) for number in range(3)}
        assert proxy.done["lost"] > 5
    assert kinds == {BucketStore}


@pytest.mark.parametrize("fault", ["error", "limit", "cut", "lost"])
def test_faults_of_the_network_and_the_service_are_ridden_out(
    server: str, place: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    agree(server, place, True)
    with fault_proxy(server, seed=1, **{fault: 0.2}) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        store = open_store(place)
        for number in range(10):
            store.put(f"a/{number}", bytes([number]) * 3000)
            assert store.get(f"a/{number}", limit=1 << 20) == bytes([number]) * 3000
            with pytest.raises(NotFound):
                store.get(f"b/{number}", limit=1 << 20)
        assert len(store.list("a")) == 10
        assert proxy.done[fault]


def test_the_doctor_measures_a_bucket(server: str, place: str) -> None:
    settings = {"GDRIVE_PATH": place, "MODEL_NAME": "nano"}
    exam = StoreExam(load(settings), settings, {})
    exam.start()
    found = {finding.check: finding for finding in exam.findings(60.0)}
    assert found["store"].detail == f"{place}, a bucket whose service creates each key once"
    checked = ("store", "write", "read", "listing", "exclusive create", "delete")
    assert {name: found[name].status for name in checked} == dict.fromkeys(checked, "ok")
    assert open_store(place).list("doctor") == []


def test_a_missing_extra_is_answered_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name == "obstore" or name.startswith(("obstore.", "rl_swarm.store.clouds"))]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("bucket", "candidates", "agreement"):
        monkeypatch.delitem(sys.modules, f"rl_swarm.store.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(LibraryError, match=f"s3:// needs the package obstore.*: {re.escape(install_command('cloud'))}$"):
        open_store("s3://bucket")
