"""Fifty viewers, and whatever a description of an API allows one to ask (slow)."""

import asyncio
import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import pytest

from tests.support.long_run import LongRun
from tests.support.web_server import served

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

VIEWERS, SECONDS, PAUSE = 50, 30.0, 2.0
PATHS = ("round_and_stage", "rewards-history", "metrics", "peers", "gossip", "leaderboard", "rollouts?limit=5")
MOST_GROWTH_MB = 8.0
ONE_EVENT = """
[[operations]]
include-path = "/api/events"
parameters = { once = true }  # a stream would not end
"""


async def ask(port: int, path: str) -> tuple[float, int]:
    """One request on a connection of its own: seconds, and the status."""
    began = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET /api/{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
    head = await reader.readline()
    await reader.read()
    writer.close()
    return time.perf_counter() - began, int(head.split()[1])


async def stream(port: int, until: float) -> int:
    """Read the events of a run until then; return how many came."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /api/events?experiment=first HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    found = 0
    while (left := until - time.monotonic()) > 0:
        try:
            line = await asyncio.wait_for(reader.readline(), left)
        except TimeoutError:
            break
        assert line, "the stream ended"
        found += line.startswith(b"event: ")
    writer.close()
    return found


async def view(port: int, number: int, until: float) -> tuple[int, list[float], list[int]]:
    """One viewer: a stream of events, and a request every PAUSE seconds."""
    await asyncio.sleep(PAUSE * number / VIEWERS)
    events = asyncio.create_task(stream(port, until))
    times, statuses, turn = list[float](), list[int](), number
    while time.monotonic() < until:
        path = PATHS[turn % len(PATHS)]
        seconds, status = await ask(port, f"{path}{'&' if '?' in path else '?'}experiment=first")
        times.append(seconds)
        statuses.append(status)
        turn += 1
        await asyncio.sleep(max(0.0, min(PAUSE - seconds, until - time.monotonic())))
    return await events, times, statuses


def test_fifty_viewers_are_served_like_one(tmp_path: Path) -> None:
    run = LongRun(tmp_path / "store", "first", 300, 8)

    async def crowd(port: int, viewers: int, seconds: float) -> list[tuple[int, list[float], list[int]]]:
        until = time.monotonic() + seconds
        watching = [asyncio.create_task(view(port, number, until)) for number in range(viewers)]
        while time.monotonic() < until:
            await asyncio.sleep(1.5)
            await asyncio.to_thread(run.play, 1)
        return await asyncio.gather(*watching)

    with served(run.store.root, tmp_path) as server:
        port = int(server.url.rpartition(":")[2])
        asyncio.run(crowd(port, VIEWERS, 4.0))  # everything is loaded, and every answer was made once
        before = server.memory_mb()
        [(events, alone, statuses)] = asyncio.run(crowd(port, 1, 14.0))
        assert events >= 4 and set(statuses) == {200}
        seen = asyncio.run(crowd(port, VIEWERS, SECONDS))
        after = server.memory_mb()
        assert server.process.poll() is None
    times = [seconds for _, each, _ in seen for seconds in each]
    print(
        f"{len(times)} answers, median {1000 * median(times):.1f} ms, of one viewer {1000 * median(alone):.1f} ms, "
        f"slowest {1000 * max(times):.0f} ms; {before:.1f} MB before, {after:.1f} MB after"
    )
    assert {status for _, _, each in seen for status in each} == {200}
    assert min(events for events, _, _ in seen) >= SECONDS / 1.5 / 3, "every viewer hears of new rounds"
    assert median(times) <= 5 * median(alone)
    assert after - before <= MOST_GROWTH_MB
    assert "Error" not in server.console.read_text() and "Traceback" not in server.console.read_text()


def test_no_question_that_the_description_allows_breaks_the_server(tmp_path: Path) -> None:
    if find_spec("schemathesis") is None:
        pytest.skip("schemathesis is not installed: make test-slow installs it")
    run = LongRun(tmp_path / "store", "first", 20, 3)
    (tmp_path / "schemathesis.toml").write_text(ONE_EVENT)
    with served(run.store.root, tmp_path) as server:
        command = [str(Path(sys.executable).with_name("schemathesis")), "run", f"{server.url}/api/openapi.json"]
        options = ["--checks", "not_a_server_error,response_schema_conformance,content_type_conformance", "--max-examples", "40"]
        options += ["--seed", "1", "--workers", "2", "--no-color"]
        environment = {**os.environ, "HOME": str(tmp_path), "PYTHONHASHSEED": "0"}
        done = subprocess.run([*command, *options], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280)
        print(done.stdout[-3000:])
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
        assert "Traceback" not in server.console.read_text()
