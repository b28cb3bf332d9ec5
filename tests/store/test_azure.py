"""Azure's blob storage: the contract on Azurite, its emulator from npm. For gs:// there is no server here; it is not run."""

import base64
import hashlib
import hmac
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path

import pytest

from rl_swarm.errors import ConfigError
from rl_swarm.store import Store, open_store
from rl_swarm.store.bucket import BucketStore
from tests.store.store_contract import StoreContract
from tests.support.s3_server import free_ports

ACCOUNT = "devstoreaccount1"
# Azurite's own account, which its documentation publishes: https://github.com/Azure/Azurite#default-storage-account
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
VERSION = "3.35.0"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed")
    folder = tmp_path_factory.mktemp("azurite")
    subprocess.run([npm, "install", "--silent", "--no-audit", "--no-fund", f"azurite@{VERSION}"], cwd=folder, check=True)
    [port] = free_ports(1)
    program = folder / "node_modules" / ".bin" / "azurite-blob"
    options = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(folder / "data"), "--disableTelemetry"]
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen([program, *options, "--skipApiVersionCheck"], stdout=output, stderr=output)
    try:
        _wait(port, folder / "output")
        yield f"http://127.0.0.1:{port}/{ACCOUNT}"
    finally:
        process.kill()
        process.wait()


def _wait(port: int, output: Path) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            assert time.monotonic() < deadline, output.read_text()
            time.sleep(0.1)


@pytest.fixture
def account(azurite: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", azurite)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY)
    return azurite


class TestAzure(StoreContract):
    removes_folders = False

    @pytest.fixture
    def store(self, account: str, request: pytest.FixtureRequest) -> Store:
        _make_container(account)
        return open_store(f"az://swarm/{abs(hash(request.node.nodeid))}")

    def second(self, store: Store) -> Store:
        return open_store(store.url)

    def test_creation_is_conditional(self, store: Store) -> None:
        assert type(store) is BucketStore


def test_a_container_that_does_not_exist(account: str) -> None:
    with pytest.raises(ConfigError, match="a bucket that does not exist, got 'az://none'"):
        open_store("az://none")


def _make_container(endpoint: str) -> None:
    """Make the container if it is not there, which obstore cannot: a request signed with the account's key."""
    date = formatdate(usegmt=True)
    headers = {"x-ms-date": date, "x-ms-version": "2021-12-02"}
    signed = [
        *("PUT", *[""] * 11, *(f"{name}:{value}" for name, value in headers.items())),
        f"/{ACCOUNT}/{ACCOUNT}/swarm\nrestype:container",
    ]
    mac = hmac.new(base64.b64decode(KEY), "\n".join(signed).encode(), hashlib.sha256)
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(mac.digest()).decode()}"
    request = urllib.request.Request(f"{endpoint}/swarm?restype=container", b"", headers, method="PUT")
    request.add_header("Content-Type", "")
    try:
        urllib.request.urlopen(request).close()
    except urllib.error.HTTPError as error:
        assert error.code == 409, error.read()
