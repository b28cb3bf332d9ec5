"""A hub on the loopback: as much of its HTTP interface as the real `huggingface_hub` client needs to push a model and fetch it.

Files that are binary or large go through the LFS batch interface with the basic transfer, the others inside the commit, as on the
real hub. What arrives is checked: the token, the card's front matter, sizes and hashes. It offers no xet.
"""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import huggingface_hub.constants
import pytest
import yaml

TOKEN = "hf_tokenForTheStubOnly"
USER = "tester"


class HubStub:
    """What the stub stores, and how it is told to misbehave.

    `fail` maps a part of a path to the status that is answered there; a path with `hang` in it is never answered.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.fail: dict[str, int] = {}
        self.hang = ""
        self.released = threading.Event()
        self.requests: list[str] = []
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.messages: list[str] = []
        self.transferred: dict[str, bytes] = {}

    @property
    def uploaded_through_lfs(self) -> set[str]:
        """Names of the files whose content came through LFS."""
        contents = set(self.transferred.values())
        return {name for files in self.repositories.values() for name, data in files.items() if data in contents}


@contextmanager
def hub() -> Iterator[HubStub]:
    """A stub that runs until the block is left, on a free port of this machine only."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.block_on_close = False
    server.stub = HubStub(f"http://127.0.0.1:{server.server_port}")  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server.stub  # type: ignore[attr-defined]
    finally:
        server.stub.released.set()  # type: ignore[attr-defined]
        server.shutdown()
        server.server_close()
        thread.join()


def point_at(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the client in this process take an address for the hub's."""
    template = address + "/{repo_id}/resolve/{revision}/{filename}"
    for name, value in {"ENDPOINT": address, "HUGGINGFACE_CO_URL_TEMPLATE": template, "HF_HUB_DISABLE_XET": True}.items():
        monkeypatch.setattr(huggingface_hub.constants, name, value)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None: ...

    def do_GET(self) -> None:
        self.dispatch()

    do_HEAD = do_POST = do_PUT = do_GET

    @property
    def stub(self) -> HubStub:
        return self.server.stub  # type: ignore[attr-defined,no-any-return]

    def dispatch(self) -> None:
        body = self.body()
        path = self.path.partition("?")[0]
        self.stub.requests.append(f"{self.command} {path}")
        if self.stub.hang and self.stub.hang in path:
            self.stub.released.wait()
            self.close_connection = True
            return
        status = next((status for part, status in self.stub.fail.items() if part in path), None)
        if status is not None:
            self.reply({"error": f"the stub was told to fail ({self.headers.get('Authorization')})"}, status)
            return
        if not path.startswith("/transfer/") and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self.reply({"error": "Invalid credentials in Authorization header"}, 401)
            return
        for method, pattern, answer in ROUTES:
            match = re.fullmatch(pattern, path)
            if match and method in (self.command, "GET" if self.command == "HEAD" else ""):
                answer(self, body, *match.groups())
                return
        self.reply({"error": f"the stub has no {self.command} {path}"}, 404)

    def body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        data = b""
        while size := int(self.rfile.readline(), 16):
            data += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return data

    def reply(self, content: Any, status: int = 200, **headers: str) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(data))} | headers).items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


def whoami(handler: Handler, body: bytes) -> None:
    handler.reply({"type": "user", "name": USER, "orgs": []})


def create(handler: Handler, body: bytes) -> None:
    asked = json.loads(body)
    name = f"{asked['organization'] or USER}/{asked['name']}"
    status = 409 if name in handler.stub.repositories else 200
    handler.stub.repositories.setdefault(name, {})
    handler.reply({"url": f"{handler.stub.url}/{name}", "name": name}, status)


def validate_card(handler: Handler, body: bytes) -> None:
    front = re.match(r"---\n(.*?)\n---\n", json.loads(body)["content"], re.DOTALL)
    fields = yaml.safe_load(front[1]) if front else None
    right = isinstance(fields, dict) and isinstance(fields.get("tags"), list) and isinstance(fields.get("base_model", ""), str)
    errors = [] if right else [{"message": "no usable front matter"}]
    handler.reply({"errors": errors, "warnings": []}, 400 if errors else 200)


def preupload(handler: Handler, body: bytes, repository: str) -> None:
    def mode(file: dict[str, Any]) -> str:
        return "lfs" if b"\0" in base64.b64decode(file["sample"]) or file["path"].endswith(".safetensors") else "regular"

    files = json.loads(body)["files"]
    handler.reply({"files": [{"path": file["path"], "uploadMode": mode(file), "shouldIgnore": False} for file in files]})


def lfs_batch(handler: Handler, body: bytes, repository: str) -> None:
    asked = json.loads(body)
    assert asked["operation"] == "upload" and "basic" in asked["transfers"]

    def actions(oid: str) -> dict[str, Any]:
        upload, verify = f"{handler.stub.url}/transfer/{oid}", f"{handler.stub.url}/verify/{oid}"
        return {} if oid in handler.stub.transferred else {"actions": {"upload": {"href": upload}, "verify": {"href": verify}}}

    handler.reply({"transfer": "basic", "objects": [each | actions(each["oid"]) for each in asked["objects"]]})


def lfs_put(handler: Handler, body: bytes, oid: str) -> None:
    if hashlib.sha256(body).hexdigest() != oid:
        handler.reply({"error": "the content does not match its name"}, 400)
        return
    handler.stub.transferred[oid] = body
    handler.reply({})


def lfs_verify(handler: Handler, body: bytes, oid: str) -> None:
    asked = json.loads(body)
    right = asked["oid"] == oid and len(handler.stub.transferred.get(oid, b"")) == asked["size"]
    handler.reply({}, 200 if right else 404)


def commit(handler: Handler, body: bytes, repository: str) -> None:
    files = handler.stub.repositories[repository]
    for line in body.splitlines():
        operation = json.loads(line)
        value = operation["value"]
        if operation["key"] == "header":
            handler.stub.messages.append(value["summary"])
        elif operation["key"] == "file":
            files[value["path"]] = base64.b64decode(value["content"])
        elif operation["key"] == "lfsFile":
            files[value["path"]] = handler.stub.transferred[value["oid"]]
        else:
            handler.reply({"error": f"the stub has no {operation['key']}"}, 400)
            return
    handler.reply({"commitUrl": f"{handler.stub.url}/{repository}/commit/{head(files)}", "commitOid": head(files)})


def head(files: dict[str, bytes]) -> str:
    return hashlib.sha1(b"".join(name.encode() + data for name, data in sorted(files.items()))).hexdigest()


def info(handler: Handler, body: bytes, repository: str) -> None:
    files = handler.stub.repositories[repository]
    handler.reply({"id": repository, "sha": head(files), "siblings": [{"rfilename": name} for name in files]})


def tree(handler: Handler, body: bytes, repository: str) -> None:
    files = handler.stub.repositories[repository]
    handler.reply([{"type": "file", "path": name, "size": len(data), "oid": blob_id(data)} for name, data in files.items()])


def resolve(handler: Handler, body: bytes, repository: str, name: str) -> None:
    files = handler.stub.repositories[repository]
    if name not in files:
        handler.reply({"error": "no such file"}, 404, X_Error_Code="EntryNotFound")
        return
    handler.reply(files[name], ETag=f'"{blob_id(files[name])}"', X_Repo_Commit=head(files))


def blob_id(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


ROUTES: list[tuple[str, str, Callable[..., None]]] = [
    ("GET", "/api/whoami-v2", whoami),
    ("POST", "/api/repos/create", create),
    ("POST", "/api/validate-yaml", validate_card),
    ("POST", "/api/models/([^/]+/[^/]+)/preupload/main", preupload),
    ("POST", r"/([^/]+/[^/]+)\.git/info/lfs/objects/batch", lfs_batch),
    ("PUT", "/transfer/([0-9a-f]{64})", lfs_put),
    ("POST", "/verify/([0-9a-f]{64})", lfs_verify),
    ("POST", "/api/models/([^/]+/[^/]+)/commit/main", commit),
    ("GET", "/api/models/([^/]+/[^/]+)(?:/revision/main)?", info),
    ("GET", "/api/models/([^/]+/[^/]+)/tree/[0-9a-z]+", tree),
    ("GET", "/([^/]+/[^/]+)/resolve/[0-9a-z]+/(.+)", resolve),
]
