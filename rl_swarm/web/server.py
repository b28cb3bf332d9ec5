"""Serve the dashboard: check what is installed, choose address and token, run until a stop."""

import os
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from types import FrameType

from rl_swarm.errors import ConfigError
from rl_swarm.extras import install_command
from rl_swarm.processes.stopping import launcher_of, watching_launcher

HOST, PORT = "127.0.0.1", 8470
MORE_PORTS = 50  # that are tried after the usual one
TOKEN_BYTES = 24
LIBRARIES = ("fastapi", "uvicorn", "prometheus_client")


@dataclass(frozen=True)
class Address:
    """Where the page is served. The link holds a generated token, after a '#', which browsers never send, but not WEB_TOKEN."""

    host: str
    port: int
    token: str | None = None
    made_up: bool = False

    @property
    def link(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        secret = "" if self.token is None else f"#token={self.token if self.made_up else '$WEB_TOKEN'}"
        return f"http://{host}:{self.port}/{secret}"


def require_libraries() -> None:
    """Raise ConfigError with the command that installs what is missing."""
    for name in LIBRARIES:
        if find_spec(name) is None:
            raise ConfigError(f"the dashboard needs the library {name!r}, which is not installed: {install_command('web')}")


def choose_address(host: str, port: int | None, token: str | None) -> Address:
    """Choose the usual port, or a free one near it, unless one is given. Generate a token if others can connect and none is set."""
    from rl_swarm.web.guard import is_loopback

    made_up = token is None and not is_loopback(host)
    token = secrets.token_urlsafe(TOKEN_BYTES) if made_up else token
    for number in (port,) if port is not None else range(PORT, PORT + MORE_PORTS):
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, number))
                return Address(host, probe.getsockname()[1], token, made_up)
            except OSError as error:
                reason = error.strerror
    raise ConfigError(f"cannot listen at {host}, port {port or PORT} ({reason}): name others with --host and --port")


def serve(store_url: str, experiment: str | None, founder: str | None, address: Address, say: Callable[[str], None]) -> None:
    """Serve until Ctrl-C, SIGTERM, or the end of the launcher that started this process. Logs no request."""
    import uvicorn

    from rl_swarm.store import open_store
    from rl_swarm.web.app import make_app
    from rl_swarm.web.runs import Runs
    from rl_swarm.web.telemetry import export

    runs = Runs(open_store(store_url, writable=False), experiment, founder)

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            runs.close()  # ends the streams: the shutdown would wait for them
            super().handle_exit(sig, frame)

    config = uvicorn.Config(
        make_app(runs, address.token),
        host=address.host,
        port=address.port,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=2,
    )
    server = Server(config)

    def gone() -> None:
        runs.close()
        server.should_exit = True

    export(runs, os.environ)
    say(f"showing {store_url} at {address.link} (Ctrl-C ends it)")
    with watching_launcher(launcher_of(os.environ), gone):
        server.run()
