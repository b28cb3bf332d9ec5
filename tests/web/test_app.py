"""The web API: every answer agrees with the files of the run, in any order of questions, and none shows markup of strangers."""

import json
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from fastapi.testclient import TestClient

from rl_swarm.runs import progress
from rl_swarm.runs.index import RunIndex
from rl_swarm.runs.ledger import FIGURES
from rl_swarm.runs.names import readable_name
from rl_swarm.store.folder import FolderStore
from rl_swarm.web import views
from rl_swarm.web.app import make_app
from rl_swarm.web.documents import Advice
from rl_swarm.web.runs import Runs
from tests.support.long_run import LongRun


def ask(client: TestClient, path: str, status: int = 200, **params: Any) -> Any:
    answer = client.get(f"/api/{path}", params=params)
    assert answer.status_code == status, answer.text
    return answer.json()


def journal(run: LongRun, node: str) -> list[dict[str, Any]]:
    """Read apart from the package."""
    lines = (run.store.root / run.layout.log(node, "metrics.jsonl")).read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_the_overview_says_where_the_run_stands(client: TestClient, run: LongRun) -> None:
    [line] = ask(client, "experiments")["experiments"]
    assert (line["name"], line["rounds_done"], line["workers"], line["status"]) == ("first", 12, 3, "silent")
    found = ask(client, "round_and_stage")
    assert (found["rounds_done"], found["max_rounds"], found["workers"], found["model"]) == (12, 22, 3, "nano")
    assert found["status"] == "silent", "its last round is years ago"
    assert (found["own_wanted"], found["external_wanted"], found["reading"], found["trouble"]) == (4, 4, False, "")
    assert found["pace"] == pytest.approx(2.0)


def test_peers_have_the_figures_of_their_newest_row(client: TestClient, run: LongRun) -> None:
    found = ask(client, "peers")
    assert found["total"] == 3 and [peer["id"] for peer in found["peers"]] == run.names
    for peer in found["peers"]:
        rows = journal(run, peer["id"])
        assert peer["name"] == readable_name(peer["id"]) and peer["doing"] == "waiting for the next round"
        assert peer["reward"] == pytest.approx(fmean(row["reward"] for row in rows[-5:]))
        assert peer["tokens"] == sum(row["tokens"] for row in rows) and peer["got"] == sum(len(row["external_ids"]) for row in rows)
        assert peer["rejected"] == {"stale": 1}
    assert sum(use["count"] for use in found["uses"]) == 3 * 12 * 4 == sum(peer["gave"] for peer in found["peers"])
    assert [peer["id"] for peer in ask(client, "peers", offset=1, limit=1)["peers"]] == ["worker_2"]


def test_leaderboards_are_paged_and_sorted(client: TestClient, run: LongRun) -> None:
    rows = {name: journal(run, name) for name in run.names}
    totals = {name: sum(row["reward"] for row in rows[name]) for name in run.names}
    by_total = sorted(run.names, key=lambda name: -totals[name])
    found = ask(client, "leaderboard", sort="total")
    assert [each["id"] for each in found["leaders"]] == by_total and found["total"] == 3
    assert [each["reward_total"] for each in found["leaders"]] == pytest.approx([totals[name] for name in by_total])
    won = dict.fromkeys(run.names, 0.0)
    for number in range(12):
        best = max(rows[name][number]["reward"] for name in run.names)
        winners = [name for name in run.names if rows[name][number]["reward"] == best]
        for name in winners:
            won[name] += 1 / len(winners)
    assert {each["id"]: each["rounds_won"] for each in found["leaders"]} == pytest.approx(won)
    [second] = ask(client, "leaderboard", sort="total", offset=1, limit=1)["leaders"]
    assert (second["id"], second["rank"]) == (by_total[1], 2)
    [first] = ask(client, "leaderboard-cumulative", limit=1)["leaders"]
    assert first["id"] == by_total[0] and first["points"][-1] == [11, pytest.approx(totals[by_total[0]])]


def test_rewards_and_metrics_are_those_of_the_journals(client: TestClient, run: LongRun) -> None:
    rows = {name: journal(run, name) for name in run.names}
    found = ask(client, "rewards-history")
    assert found["width"] == 1 and {node["id"] for node in found["nodes"]} == set(run.names)
    for node in found["nodes"]:
        assert node["points"] == [[row["round"], pytest.approx(row["reward"])] for row in rows[node["id"]]]
    for number, point in enumerate(found["mean"]):
        rewards = [rows[name][number]["reward"] for name in run.names]
        assert (point["mean"], point["low"], point["high"]) == pytest.approx((fmean(rewards), min(rewards), max(rewards)))
    metrics = ask(client, "metrics", figure=["entropy", "seconds_train"], node="worker_2")
    assert metrics["figures"]["entropy"] == pytest.approx([row["entropy"] for row in rows["worker_2"]])
    assert list(metrics["figures"]) == ["entropy", "seconds_train"] and metrics["rounds"] == list(range(12))
    assert metrics["uninformative"] == {"share": pytest.approx(0.25), "line": ""}
    assert ask(client, "metrics")["held_out"][0]["questions"] == 400
    assert "no figure" in ask(client, "metrics", 404, figure="colour")["detail"]


def test_advice_comes_once_enough_rollouts_had_nothing_to_learn(run: LongRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_swarm.web.views.MUCH_UNINFORMATIVE", 0.2)  # the run has a share of a quarter
    index = RunIndex(run.store, run.layout)
    index.look()
    assert "rl-swarm probe" in views.metrics(index, FIGURES, None).uninformative.line
    short = LongRun(run.store.root, "short", 3, 3)
    index = RunIndex(short.store, short.layout)
    index.look()
    assert views.metrics(index, FIGURES, None).uninformative == Advice(pytest.approx(0.25), ""), "36 rollouts: too early"


def test_rollouts_are_found_filtered_and_safe_to_show(client: TestClient, run: LongRun) -> None:
    found = ask(client, "rollouts", node="worker_1", round=11)
    assert [each["id"] for each in found["rollouts"]] == ["worker_1/11/0/0", "worker_1/11/0/1"] and found["newest_round"] == 11
    good = found["rollouts"][0]
    assert good["expected"] == "7" and [each["parsed"] for each in good["completions"]] == ["6", "7", "8", "9"]
    assert [each["verdict"] for each in good["completions"]] == ["wrong", "right", "wrong", "wrong"]
    assert [each["advantage"] for each in good["completions"]] == pytest.approx([-(3**-0.5), 3**0.5, -(3**-0.5), -(3**-0.5)])
    everybody = {name: {used for row in journal(run, name) for used in row["external_ids"]} for name in run.names}
    older = ask(client, "rollouts", id="worker_1/9/0/0")["rollouts"][0]
    assert {each["id"] for each in older["trained_by"]} == {name for name, used in everybody.items() if "worker_1/9/0/0" in used}
    text = found["rollouts"][1]["completions"][0]["text"]
    assert text.startswith("<script>") and "\\x1b[2J\\u202eevil" in text and text.isprintable()
    assert not ask(client, "rollouts", min_reward=0.9)["rollouts"]
    assert {each["task"] for each in ask(client, "rollouts", task="gcd", round=11)["rollouts"]} == {"gcd"}
    first = ask(client, "rollouts", limit=4)
    after = ask(client, "rollouts", limit=4, start=first["next"])
    assert not {each["id"] for each in first["rollouts"]} & {each["id"] for each in after["rollouts"]}
    assert "no such rollout" in ask(client, "rollouts", 404, id="worker_1/99/0/0")["detail"]


def test_gossip_names_and_the_stream(client: TestClient, run: LongRun) -> None:
    completions = ask(client, "gossip", limit=5)["completions"]
    assert len(completions) == 5 and all(each["round"] == 11 and each["text"].isprintable() for each in completions)
    name = readable_name("worker_3")
    assert ask(client, "id-to-name", id="worker_3") == {"id": "worker_3", "name": name}
    assert ask(client, "name-to-id", name=name.upper())["ids"] == ["worker_3"]
    assert "no node" in ask(client, "name-to-id", 404, name="x")["detail"] and ask(client, "id-to-name", 404, id="x")
    events = client.get("/api/events", params={"once": True})
    assert events.headers["content-type"].startswith("text/event-stream")
    assert json.loads(events.text.removeprefix("event: change\ndata: "))["rounds_done"] == 12


def test_what_was_seen_is_not_sent_again(client: TestClient, run: LongRun) -> None:
    for path in ("experiments", "rewards-history", "peers", "metrics", "gossip", "rollouts", "leaderboard"):
        first = client.get(f"/api/{path}")
        again = client.get(f"/api/{path}", headers={"If-None-Match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b""), path
    run.play(1)
    index = client.app.state.runs.index("first")  # type: ignore[attr-defined]
    index.look()
    changed = client.get("/api/rewards-history", headers={"If-None-Match": first.headers["etag"]})
    assert changed.status_code == 200 and changed.json()["mean"][-1]["round"] == 12


def test_answers_are_kept_by_what_was_asked_and_not_by_the_host(client: TestClient) -> None:
    before = ask(client, "leaderboard", limit=1)
    client.get("/api/peers", headers={"Host": "127.0.0.1/api/leaderboard?limit=1&x="})
    assert ask(client, "leaderboard", limit=1) == before


def test_the_stream_of_a_run_that_was_dropped_ends(run: LongRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_swarm.web.runs.MOST_RUNS", 1)
    LongRun(run.store.root, "second", 2, 2)
    runs = Runs(run.store)
    first = runs.index("first")
    assert runs.watch(first) and runs.index("second") and not runs.watch(first)
    assert runs.watched() == [runs.index("second")]
    again = runs.index("first")
    assert again is not first and runs.watch(again), "whoever asks again gets a new one"


def test_a_run_that_nobody_follows_any_more_is_read_again(run: LongRun, monkeypatch: pytest.MonkeyPatch) -> None:
    client = TestClient(make_app(Runs(run.store)), base_url="http://127.0.0.1")  # not started: no thread reads what is new
    assert ask(client, "round_and_stage", experiment="first")["rounds_done"] == 12
    run.play(3)
    monkeypatch.setattr("rl_swarm.web.runs.LIST_SECONDS", 0.0)
    assert ask(client, "round_and_stage", experiment="first")["rounds_done"] == 12, "what is followed, no request reads"
    assert ask(client, "experiments")["experiments"][0]["rounds_done"] == 12
    with monkeypatch.context() as later:
        later.setattr("rl_swarm.web.runs.WATCHED_SECONDS", 0.0)
        assert ask(client, "experiments")["experiments"][0]["rounds_done"] == 15
        assert ask(client, "rewards-history", experiment="first")["mean"][-1]["round"] == 14
    run.play(1)
    assert ask(client, "round_and_stage", experiment="first")["rounds_done"] == 15, "it is followed again"


def test_wrong_questions_are_answered_with_what_to_do(client: TestClient, tmp_path: Path) -> None:
    assert "choose one of" in ask(client, "peers", 404, experiment="nothing")["detail"]
    assert ask(client, "peers", 422, experiment="../x") and ask(client, "rollouts", 422, start="x")
    (tmp_path / "empty").mkdir()
    with TestClient(make_app(Runs(FolderStore(tmp_path / "empty"))), base_url="http://127.0.0.1") as other:
        assert ask(other, "experiments")["experiments"] == [] and "rl-swarm demo" in ask(other, "round_and_stage", 404)["detail"]


def test_an_experiment_that_is_not_the_founders_is_refused(run: LongRun) -> None:
    with TestClient(make_app(Runs(run.store, None, "0" * 64)), base_url="http://127.0.0.1") as client:
        assert [each["status"] for each in ask(client, "experiments")["experiments"]] == ["refused"]
        assert "the founder that you named" in ask(client, "peers", 409, experiment="first")["detail"]


def test_every_question_of_the_description_takes_an_experiment(client: TestClient) -> None:
    description = ask(client, "openapi.json")
    named = {"healthz", "experiments", "round_and_stage", "peers", "leaderboard", "leaderboard-cumulative", "rewards-history"}
    named |= {"metrics", "rollouts", "gossip", "name-to-id", "id-to-name", "events"}
    assert {f"/api/{name}" for name in named} | {"/metrics"} == set(description["paths"])
    for path, methods in description["paths"].items():
        names = [each["name"] for each in methods["get"].get("parameters", ())]
        assert list(methods) == ["get"] and ("experiment" in names or path == "/api/healthz"), path


def test_reading_changes_nothing_in_the_store(client: TestClient, run: LongRun) -> None:
    before = {path: path.read_bytes() for path in run.store.root.rglob("*") if path.is_file()}
    for path in client.get("/api/openapi.json").json()["paths"]:
        client.get(path, params={"once": True, "name": "x", "id": "worker_1"})
    assert {path: path.read_bytes() for path in run.store.root.rglob("*") if path.is_file()} == before
    assert progress.records(run.store, run.layout, "worker_1")


def test_the_page_and_its_files_are_served(client: TestClient) -> None:
    page = client.get("/").text
    assert "<script src=" in page and "onclick" not in page and "style=" not in page
    for name in (
        "shared.css",
        "static/app.css",
        "static/main.js",
        "static/vendor/uPlot.iife.min.js",
        "static/vendor/uPlot.LICENSE.txt",
    ):
        assert client.get(f"/{name}").status_code == 200, name
    scripts = "".join(path.read_text() for path in (Path(make_app.__code__.co_filename).parent / "static").glob("*.js"))
    assert "innerHTML" not in scripts and "insertAdjacentHTML" not in scripts and "http://" not in scripts + page
