"""Who may ask: the token, loopback without one, and the headers of every answer."""

import hmac
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from rl_swarm.web import guard
from rl_swarm.web.app import make_app
from rl_swarm.web.guard import is_loopback
from rl_swarm.web.runs import Runs
from rl_swarm.web.server import choose_address
from tests.support.long_run import LongRun

TOKEN = "correct-horse-battery"


@pytest.fixture
def guarded(run: LongRun) -> Iterator[TestClient]:
    with TestClient(make_app(Runs(run.store), TOKEN), base_url="http://swarm.example") as found:
        yield found


@pytest.mark.parametrize("path", ["/api/peers", "/api/openapi.json", "/metrics", "/api/events?once=1", "/api/rollouts"])
def test_with_a_token_nothing_is_told_without_it(guarded: TestClient, path: str) -> None:
    for header in ({}, {"Authorization": TOKEN}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer é".encode()}):
        answer = guarded.get(path, headers=header)
        assert answer.status_code == 401 and TOKEN not in answer.text and answer.headers["www-authenticate"] == "Bearer"
    assert guarded.get(path, headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
    assert guarded.get("/").status_code == guarded.get("/api/healthz").status_code == 200


@pytest.mark.parametrize("host", ["swarm.example/?", "swarm.example/static/x?", "swarm.example#", "swarm.example/api/healthz?"])
def test_a_made_up_host_opens_no_door(guarded: TestClient, host: str) -> None:
    for path in ("/api/peers", "/metrics"):
        assert guarded.get(path, headers={"Host": host}).status_code == 401


def test_the_token_is_compared_in_constant_time(guarded: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []
    original = hmac.compare_digest

    def compare(given: bytes, token: bytes) -> bool:
        compared.append((given, token))
        return original(given, token)

    monkeypatch.setattr(guard.hmac, "compare_digest", compare)
    guarded.get("/api/peers", headers={"Authorization": "Bearer nearly"})
    assert compared == [(b"nearly", TOKEN.encode())]


@pytest.mark.parametrize(
    ("host", "status"),
    [("127.0.0.1:8470", 200), ("localhost", 200), ("[::1]:80", 200), ("evil.example", 421), ("", 421), ("[", 421)],
)
def test_without_a_token_only_this_machine_is_served(client: TestClient, host: str, status: int) -> None:
    assert client.get("/api/peers", headers={"Host": host}).status_code == status


def test_every_answer_forbids_inline_scripts_and_foreign_sources(client: TestClient) -> None:
    for path in ("/", "/api/peers", "/api/nothing", "/static/main.js", "/shared.css", "/api/events?once=1"):
        headers = client.get(path).headers
        policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
        assert policy["default-src"] == "'none'" and policy["script-src"] == policy["style-src"] == "'self'", path
        assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "HEAD"])
def test_nothing_can_be_changed(client: TestClient, method: str) -> None:
    assert client.request(method, "/api/peers").status_code == 405


def test_whoever_listens_for_others_has_a_token(tmp_path: Path) -> None:
    ours, theirs = choose_address("127.0.0.1", 0, None), choose_address("0.0.0.0", 0, None)
    assert ours.token is None and ours.link == f"http://127.0.0.1:{ours.port}/"
    assert theirs.token and len(theirs.token) >= 32 and theirs.link.endswith(f"/#token={theirs.token}")
    assert TOKEN not in choose_address("0.0.0.0", 0, TOKEN).link, "a token that was set is not printed"
    assert [is_loopback(host) for host in ("127.0.0.2", "::1", "localhost", "0.0.0.0", "example.org")] == [
        True,
        True,
        True,
        False,
        False,
    ]
