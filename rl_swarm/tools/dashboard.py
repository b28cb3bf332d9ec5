"""The dashboard beside a run that is started here: a process of its own, which ends with the run."""

import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from subprocess import TimeoutExpired

from rl_swarm.config import load
from rl_swarm.node.local import home_of, make_private
from rl_swarm.processes.children import Child, python
from rl_swarm.web.server import HOST, choose_address, require_libraries

STOP_SECONDS = 5.0


@contextmanager
def shown_on_a_page(wanted: bool, environment: Mapping[str, str], say: Callable[[str], None]) -> Iterator[None]:
    """Serve the dashboard of the run within the context, if that is wanted, and say where."""
    if not wanted:
        yield
        return
    require_libraries()
    config = load(environment)
    address = choose_address(HOST, None, config.web_token)
    consoles = home_of(config) / "consoles" / config.experiment_name
    make_private(consoles)
    server = _server(address.port, environment, consoles / "web.log")
    server.start()
    say(f"live on a page: {address.link}")
    try:
        yield
    finally:
        server.ask_to_stop()
        if server.process is not None and not _ended(server):
            server.kill()
        say(f"the page is closed; this opens it again: rl-swarm web --gdrive-path {shlex.quote(config.store_url)}")


def _server(port: int, environment: Mapping[str, str], console: Path) -> Child:
    return Child(python("from rl_swarm.cli import main; main()", "web", "--port", str(port)), environment, console)


def _ended(server: Child) -> bool:
    assert server.process is not None
    try:
        server.process.wait(STOP_SECONDS)
    except TimeoutExpired:
        return False
    return True
