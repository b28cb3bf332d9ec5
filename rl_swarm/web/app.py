"""The web API and the page for the runs of one store. Read-only."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from fastapi import FastAPI, HTTPException, Query, Request, Response
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse, StreamingResponse
from fastapi.staticfiles import StaticFiles

from rl_swarm import __version__
from rl_swarm.config import MOST_ROUNDS
from rl_swarm.errors import ConfigError, NotFound, StoreAway
from rl_swarm.rollout import LONGEST_TEXT
from rl_swarm.runs.browsing import Place, Wanted, find
from rl_swarm.runs.index import RunIndex
from rl_swarm.runs.ledger import FIGURES
from rl_swarm.runs.names import readable_name
from rl_swarm.show.page import CHOSEN_COLOURS, STYLE
from rl_swarm.web import documents as say
from rl_swarm.web import views
from rl_swarm.web.answers import Answers
from rl_swarm.web.figures import prometheus_text
from rl_swarm.web.guard import Guard
from rl_swarm.web.runs import Runs

STATIC = Path(__file__).parent / "static"
STREAM_SECONDS = 0.25  # how often a stream checks the version of its run
SILENCE_SECONDS = 15.0  # after which a stream sends a sign of life
MOST_STREAMS = 512
FRESH_SECONDS = 5.0  # how long a response that depends on the time is cached

Name = r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}$"
Experiment = Annotated[
    str | None, Query(pattern=Name, description="name of the experiment; by default the one that the server shows")
]
Node = Annotated[str | None, Query(pattern=Name, description="node id")]
Offset = Annotated[int, Query(ge=0, le=1_000_000)]
Limit = Annotated[int, Query(ge=1, le=256)]
Number = Annotated[int | None, Query(ge=0, lt=MOST_ROUNDS)]
Bound = Annotated[float | None, Query(ge=-1e12, le=1e12, allow_inf_nan=False)]
PROBLEMS: dict[int | str, dict[str, Any]] = {
    404: {"model": say.Problem, "description": "no such thing"},
    409: {"model": say.Problem, "description": "the experiment is not the founder's"},
    503: {"model": say.Problem, "description": "the store does not answer, or there are too many viewers"},
}
# The same for endpoints whose own response is not JSON.
PLAIN_PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {
        "description": each["description"],
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
    for status, each in PROBLEMS.items()
}


def make_app(runs: Runs, token: str | None = None) -> FastAPI:
    """Make the application. With a token, every request for data needs it; see `guard.py` for what applies without one."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        runs.start()
        yield
        runs.close()

    app = FastAPI(
        title="RL Swarm",
        version=__version__,
        description="What the nodes of an experiment are doing, what they learn, and what they write.",
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/openapi.json",
        lifespan=lifespan,
    )
    app.state.runs = runs
    app.add_middleware(Guard, token=token)
    app.add_exception_handler(NotFound, _problem(404))
    app.add_exception_handler(ConfigError, _problem(409))
    app.add_exception_handler(StoreAway, _problem(503))
    _add_overview(app, runs)
    _add_curves(app, runs)
    _add_texts(app, runs)
    _add_stream(app, runs)
    _add_page(app)
    return app


def _problem(status: int) -> Callable[[Request, Exception], Response]:
    def answer(request: Request, error: Exception) -> Response:
        return JSONResponse({"detail": views.safe(str(error), 300)}, status)

    return answer


def _fresh(index: RunIndex) -> tuple[Any, ...]:
    """Return the version of a response that also depends on the time."""
    return *index.mark, int(time.time() / FRESH_SECONDS)


def _add_overview(app: FastAPI, runs: Runs) -> None:
    answers = Answers()

    @app.get("/api/healthz", response_model=say.Health)
    def healthz() -> Response:
        """Whether the server answers."""
        return JSONResponse({"status": "ok", "version": __version__})

    @app.get("/api/experiments", response_model=say.Experiments, responses=PROBLEMS)
    def list_experiments(request: Request, experiment: Experiment = None) -> Response:
        """The experiments in the store, or one of them."""
        listing = runs.listing(time.time())
        if experiment:
            found = [each for each in listing.experiments if each.name == experiment]
            listing = say.Experiments(found, listing.default, listing.left_out)
        return answers.answer(request, None, lambda: listing)

    @app.get("/api/round_and_stage", response_model=say.RoundAndStage, responses=PROBLEMS)
    def round_and_stage(request: Request, experiment: Experiment = None) -> Response:
        """Where the run stands: round, stage, pace, time left."""
        index = runs.index(experiment)
        with index.reading():
            return answers.answer(request, _fresh(index), lambda: views.round_and_stage(index, time.time()))

    @app.get("/api/peers", response_model=say.Peers, responses=PROBLEMS)
    def peers(request: Request, experiment: Experiment = None, offset: Offset = 0, limit: Limit = 256) -> Response:
        """The nodes: what each is doing and since when, what it gave and got, and who learnt from whom."""
        index = runs.index(experiment)
        with index.reading():
            return answers.answer(request, _fresh(index), lambda: views.peers(index, time.time(), offset, limit))

    @app.get("/api/name-to-id", response_model=say.NameAndIds, responses=PROBLEMS)
    def name_to_id(name: Annotated[str, Query(max_length=100)], experiment: Experiment = None) -> Response:
        """The node with a readable name. Two nodes may, rarely, have the same one."""
        index = runs.index(experiment)
        with index.reading():
            ids = [node.node_id for node in index.moment.nodes if readable_name(node.node_id) == name.strip().lower()]
        if not ids:
            raise HTTPException(404, "no node of this experiment has that name: see /api/peers")
        return JSONResponse({"name": name.strip().lower(), "ids": ids})

    @app.get("/api/id-to-name", response_model=say.IdAndName, responses=PROBLEMS)
    def id_to_name(id: Annotated[str, Query(pattern=Name)], experiment: Experiment = None) -> Response:
        """The readable name of a node."""
        index = runs.index(experiment)
        with index.reading():
            known = any(node.node_id == id for node in index.moment.nodes)
        if not known:
            raise HTTPException(404, "no node of this experiment has that id: see /api/peers")
        return JSONResponse({"id": id, "name": readable_name(id)})

    @app.get("/metrics", response_class=PlainTextResponse, responses=PLAIN_PROBLEMS)
    def prometheus(experiment: Experiment = None) -> Response:
        """The figures of one experiment for Prometheus."""
        index = runs.index(experiment)
        with index.reading():
            return Response(prometheus_text(index), media_type="text/plain; version=0.0.4; charset=utf-8")


def _add_curves(app: FastAPI, runs: Runs) -> None:
    answers = Answers()

    @app.get("/api/leaderboard", response_model=say.Leaderboard, responses=PROBLEMS)
    def leaderboard(
        request: Request,
        experiment: Experiment = None,
        sort: Literal["reward", "won", "total"] = "reward",
        offset: Offset = 0,
        limit: Limit = 50,
    ) -> Response:
        """Workers by reward, by rounds won, or by the sum of their rewards."""
        index = runs.index(experiment)
        with index.reading():
            return answers.answer(request, index.mark, lambda: views.leaderboard(index, sort, offset, limit))

    @app.get("/api/leaderboard-cumulative", response_model=say.CumulativeLeaderboard, responses=PROBLEMS)
    def leaderboard_cumulative(
        request: Request, experiment: Experiment = None, offset: Offset = 0, limit: Annotated[int, Query(ge=1, le=64)] = 16
    ) -> Response:
        """The sum of each worker's rewards, round by round."""
        index = runs.index(experiment)
        with index.reading():
            return answers.answer(request, index.mark, lambda: views.leaderboard_cumulative(index, offset, limit))

    @app.get("/api/rewards-history", response_model=say.RewardsHistory, responses=PROBLEMS)
    def rewards_history(request: Request, experiment: Experiment = None) -> Response:
        """Own rewards of the workers by round. A long run has means over stretches of rounds instead."""
        index = runs.index(experiment)
        with index.reading():
            return answers.answer(request, index.mark, lambda: views.rewards_history(index))

    @app.get("/api/metrics", response_model=say.Metrics, responses=PROBLEMS)
    def metrics(
        request: Request,
        experiment: Experiment = None,
        figure: Annotated[list[str] | None, Query(max_length=len(FIGURES), description=f"any of {', '.join(FIGURES)}")] = None,
        node: Node = None,
    ) -> Response:
        """Figures by round, mean of the workers or of one node; held-out accuracy, rejections, advice and notes."""
        if unknown := set(figure or ()) - set(FIGURES):
            raise HTTPException(404, f"there is no figure {views.safe(min(unknown), 40)!r}: use {', '.join(FIGURES)}")
        index = runs.index(experiment)
        with index.reading():
            return answers.answer(request, index.mark, lambda: views.metrics(index, figure or FIGURES, node))


def _add_texts(app: FastAPI, runs: Runs) -> None:
    answers = Answers()

    @app.get("/api/gossip", response_model=say.Gossips, responses=PROBLEMS)
    def gossip(request: Request, experiment: Experiment = None, limit: Annotated[int, Query(ge=1, le=48)] = 24) -> Response:
        """The latest completions of the nodes."""
        index = runs.index(experiment)
        with index.reading():
            return answers.answer(request, index.mark, lambda: views.gossip(index, limit))

    @app.get("/api/rollouts", response_model=say.Rollouts, responses=PROBLEMS)
    def rollouts(
        request: Request,
        experiment: Experiment = None,
        node: Node = None,
        round: Number = None,
        task: Annotated[str | None, Query(max_length=200)] = None,
        min_reward: Bound = None,
        max_reward: Bound = None,
        id: Annotated[str | None, Query(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}(/[0-9]{1,6}){3}$")] = None,
        start: Annotated[str | None, Query(pattern=r"^[0-9]{1,6}\.[0-9]{1,3}\.[0-9]{1,4}$")] = None,
        limit: Annotated[int, Query(ge=1, le=50)] = 10,
    ) -> Response:
        """Published rollouts, the newest first: by node, round, task and mean reward, or one by its id, with its whole texts."""
        index = runs.index(experiment)
        if id:
            author, *numbers = id.split("/")
            found = find(index.store, index.layout, author, *map(int, numbers))
            if found is None:
                raise HTTPException(404, "there is no such rollout, it was removed, or it cannot be read: see /api/rollouts")
            with index.reading():
                shown = views.rollout_view(index, found, LONGEST_TEXT)
            return answers.answer(request, None, lambda: say.Rollouts([shown], None, [], index.ledger.newest))
        wanted = Wanted(node, round, task, min_reward, max_reward)
        place = Place(*map(int, start.split("."))) if start else None
        return answers.answer(request, index.mark, lambda: views.rollouts(index, wanted, place, limit))


def _add_stream(app: FastAPI, runs: Runs) -> None:
    streams = 0

    @app.get(
        "/api/events",
        response_class=StreamingResponse,
        responses=PLAIN_PROBLEMS
        | {200: {"content": {"text/event-stream": {}}, "description": "a line whenever the run has changed"}},
    )
    async def events(experiment: Experiment = None, once: bool = False) -> Response:
        """Server-sent events: version and round of the run, whenever it changes. `once` ends after the first."""
        if streams >= MOST_STREAMS:
            raise HTTPException(503, f"there are {MOST_STREAMS} viewers already: try again later")
        index = await asyncio.to_thread(runs.index, experiment)

        async def stream() -> AsyncIterator[bytes]:
            nonlocal streams
            streams += 1
            try:
                said, at = -1, time.monotonic()
                while not runs.closing and runs.watch(index):
                    now = time.monotonic()
                    if index.version != said:
                        said, at = index.version, now
                        yield _event(index)
                        if once:
                            return
                    elif now - at >= SILENCE_SECONDS:
                        at = now
                        yield b": still here\n\n"
                    await asyncio.sleep(STREAM_SECONDS)
            finally:
                streams -= 1

        return StreamingResponse(stream(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})


def _event(index: RunIndex) -> bytes:
    moment = index.moment
    data = {
        "version": index.version,
        "round": moment.round,
        "rounds_done": moment.rounds_done,
        "status": views.status_of(moment, time.time()),
        "trouble": views.safe(index.trouble, 300),
    }
    return b"event: change\ndata: " + msgspec.json.encode(data) + b"\n\n"


def _add_page(app: FastAPI) -> None:
    @app.get("/", include_in_schema=False)
    def page() -> Response:
        return FileResponse(STATIC / "index.html", headers={"Cache-Control": "no-cache"})

    @app.get("/shared.css", include_in_schema=False)
    def shared_style() -> Response:
        """The style sheet of the report."""
        return Response(f"{STYLE}\n{CHOSEN_COLOURS}\n", media_type="text/css", headers={"Cache-Control": "no-cache"})

    app.mount("/static", StaticFiles(directory=STATIC), name="static")
