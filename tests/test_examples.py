"""The manifests for containers and clusters say what the code understands. Docker and clusters are not at hand: they are parsed.

The Slurm script is run, with a stand-in for rl-swarm.
"""

import importlib.metadata
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from rl_swarm.cli import main
from rl_swarm.config import VARIABLES, load
from rl_swarm.processes.stopping import NODE_SECONDS
from rl_swarm.store.opening import CREDENTIALS

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
OTHERS = {"HF_TOKEN", "PYTHONUNBUFFERED", "OMP_NUM_THREADS"}


def understood(words: list[str]) -> str:
    """Parse a command line as ours, without running it, and return its command."""
    command = main.commands[words[0]]
    with command.make_context(words[0], list(words[1:])) as context:
        assert isinstance(context, click.Context)
    return words[0]


def check_variables(environment: dict[str, str | None]) -> None:
    for name in environment:
        assert name in VARIABLES | OTHERS or name.startswith(CREDENTIALS), name
    load({name: value for name, value in environment.items() if value is not None})


def filled(value: Any) -> Any:
    """A value of a compose file with its defaults."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", value) if isinstance(value, str) else value


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
    return document


def test_compose_has_the_documented_services(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert {"swarm-cpu", "swarm-gpu", "web"} == services.keys()
    for service in services.values():
        check_variables({name: filled(value) for name, value in service["environment"].items()})
        assert {volume.partition(":")[0] for volume in service["volumes"]} == compose["volumes"].keys()
        assert (ROOT / service["build"] / "Dockerfile").exists()
    assert [understood(services[name]["command"]) for name in services] == ["swarm", "swarm", "web"]
    assert services["swarm-gpu"]["deploy"]["resources"]["reservations"]["devices"][0]["capabilities"] == ["gpu"]
    assert services["swarm-cpu"]["environment"]["CPU_ONLY"] == "true"
    assert not services["web"]["profiles"] and services["swarm-cpu"]["profiles"], "'up' starts the web server alone"
    assert all(port.startswith("127.0.0.1:") for port in services["web"]["ports"])
    assert services["swarm-cpu"]["stop_grace_period"] == "5m" and NODE_SECONDS < 300


def instructions(path: Path) -> Iterator[tuple[str, str]]:
    text = path.read_text().replace("\\\n", " ")
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            word, _, rest = line.partition(" ")
            yield word, rest


def test_the_image_copies_and_installs_what_there_is(compose: dict[str, Any]) -> None:
    found = list(instructions(ROOT / "Dockerfile"))
    assert {word for word, _ in found} <= {
        *("FROM", "ARG", "WORKDIR", "COPY", "RUN", "USER", "VOLUME", "ENV", "STOPSIGNAL", "ENTRYPOINT", "CMD")
    }
    for rest in (rest for word, rest in found if word == "COPY"):
        assert all((ROOT / source).exists() for source in rest.split()[:-1]), rest
    [extras] = re.findall(r'"\.\[([\w,]+)\]"', (ROOT / "Dockerfile").read_text())
    assert set(extras.split(",")) <= set(importlib.metadata.metadata("rl-swarm").get_all("Provides-Extra") or [])
    assert dict(found)["ENTRYPOINT"] == '["rl-swarm"]'
    folders = {volume.partition(":")[2] for volume in compose["services"]["web"]["volumes"]}
    assert set(re.findall(r'"([^"]+)"', dict(found)["VOLUME"])) == folders
    settings = dict(pair.split("=") for pair in shlex.split(dict(found)["ENV"]))
    check_variables(settings)
    for constraints in re.findall(r"-c (\S+)", (ROOT / "Dockerfile").read_text()):
        assert (ROOT / constraints).exists()


def test_kubernetes_names_each_node_by_its_pod() -> None:
    documents = list(yaml.safe_load_all((EXAMPLES / "kubernetes.yaml").read_text()))
    [settings] = [each for each in documents if each["kind"] == "ConfigMap"]
    check_variables(settings["data"])
    sets = {each["metadata"]["name"]: each["spec"] for each in documents if each["kind"] == "StatefulSet"}
    assert sets.keys() == {"coordinator", "worker"}
    for name, spec in sets.items():
        assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()
        pod = spec["template"]["spec"]
        assert pod["terminationGracePeriodSeconds"] > NODE_SECONDS
        [container] = pod["containers"]
        assert understood(container["args"]) == {"coordinator": "coordinate", "worker": "work"}[name]
        assert container["env"] == [{"name": "NODE_ID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]
        assert load({"NODE_ID": f"{name}-12"}).node_id == f"{name}-12"
        assert {"configMapRef": {"name": settings["metadata"]["name"]}} in container["envFrom"]


@pytest.mark.parametrize(("task", "command", "node_id"), [("0", "coordinate", "coordinator_0"), ("7", "work", "worker_7")])
def test_slurm_starts_each_task_as_its_node(task: str, command: str, node_id: str, tmp_path: Path) -> None:
    stand_in = tmp_path / "rl-swarm"
    stand_in.write_text('#!/bin/sh\necho "$$ $@"\nenv\n')
    stand_in.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path), "USER": "me", "SLURM_ARRAY_TASK_ID": task}
    environment |= {"SLURM_CPUS_PER_TASK": "4", "SLURM_TMPDIR": str(tmp_path)}
    script = ["bash", str(EXAMPLES / "slurm.sbatch")]
    with subprocess.Popen(script, env=environment, stdout=subprocess.PIPE, text=True) as process:
        out, _ = process.communicate(timeout=20)
    assert process.returncode == 0
    first, *lines = out.splitlines()
    assert first == f"{process.pid} {command}", "the signal of Slurm goes to this process"
    made = dict(line.split("=", 1) for line in lines)
    assert understood([command]) == command and made["NODE_ID"] == node_id
    ours = {name: value for name, value in made.items() if name in VARIABLES}
    assert load(ours).home == f"{tmp_path}/rl-swarm" and load(ours).experiment == "slurm"
    [seconds] = re.findall(r"^#SBATCH --signal=B:TERM@(\d+)$", (EXAMPLES / "slurm.sbatch").read_text(), re.MULTILINE)
    assert int(seconds) > NODE_SECONDS
