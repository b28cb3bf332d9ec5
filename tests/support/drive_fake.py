"""A fake of Google Drive's API v3 on loopback, with Drive's habits. It has one user, and one folder, ROOT.

The methods follow https://developers.google.com/workspace/drive/api/reference/rest/v3. Habits to be switched on, with sources:

    lag_seconds     listings and the changes feed show a file late, get by id does not. Searching by name is not read-after-write
                    (https://github.com/kopia/kopia/issues/90), a listing of a folder was minutes old
                    (https://github.com/googleapis/google-api-go-client/issues/906), a new folder was not found for 5 to 15 s
                    (https://github.com/googleapis/google-api-php-client/issues/1564)
    unit_limit      units a minute and user, then 403 userRateLimitExceeded:
                    https://developers.google.com/workspace/drive/api/guides/limits
    writes_limit    writes a second, then 429: "Additional rate limit checks on the Drive backend", the same page
    session_cuts    a resumable session fails in its second chunk so many times (503), and answers 308 with what it has:
                    https://developers.google.com/workspace/drive/api/guides/manage-uploads#resume-upload
    lost_answers    so many creations are done, and the connection ends without an answer; an id that was made before is then in
                    use, 409: https://developers.google.com/workspace/drive/api/guides/create-file#generate-ids
    cut_downloads   so many downloads end early without an error; md5Checksum tells:
                    https://developers.google.com/workspace/drive/api/reference/rest/v3/files#File.FIELDS.md5_checksum
    may_delete      off: "If the file belongs to a shared drive, the user must be an organizer":
                    https://developers.google.com/workspace/drive/api/reference/rest/v3/files/delete

Always: names are not unique ("not necessarily unique within a folder", the field `name` of a file), files in the trash stay for 30
days (https://developers.google.com/workspace/drive/api/guides/delete), and the feed has only the newest change of each file.
"""

import hashlib
import json
import re
import secrets
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from email.parser import BytesParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

FOLDER = "application/vnd.google-apps.folder"
ROOT = "root-folder-id"
UNITS = {"list": 100, "changes": 100, "get": 5, "download": 200, "write": 50}


@dataclass
class Node:
    id: str
    name: str
    parent: str
    created: float
    mime: str = "application/octet-stream"
    data: bytes = b""
    trashed: bool = False
    changed: int = 0  # number of its newest change
    changed_at: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        date = datetime.fromtimestamp(self.created, timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        found: dict[str, Any] = {"id": self.id, "name": self.name, "mimeType": self.mime, "parents": [self.parent]}
        found |= {"trashed": self.trashed, "createdTime": date}
        if self.mime != FOLDER:
            found |= {"size": str(len(self.data)), "md5Checksum": hashlib.md5(self.data).hexdigest()}
        return found


class Refusal(Exception):
    def __init__(self, status: int, reason: str) -> None:
        self.status, self.reason = status, reason


@dataclass
class DriveFake:
    lag_seconds: float = 0.0
    unit_limit: int = 325_000
    writes_limit: int | None = None
    session_cuts: int = 0
    lost_answers: int = 0
    cut_downloads: int = 0
    may_delete: bool = True
    page_limit: int = 1000
    endpoint: str = ""
    clock: Callable[[], float] = time.monotonic  # of the quota and the lag
    meter: Counter[str] = field(default_factory=Counter)  # operations by kind
    refused: Counter[int] = field(default_factory=Counter)
    most_units: int = 0  # in any minute

    def __post_init__(self) -> None:
        self.nodes = {ROOT: Node(ROOT, "shared", "", time.time(), FOLDER)}
        self.removed: dict[str, tuple[int, float]] = {}
        self.sessions: dict[str, dict[str, Any]] = {}
        self.number = 0
        self.lock = threading.RLock()
        self._units: deque[tuple[float, int]] = deque()
        self._writes: deque[float] = deque()

    @property
    def stored_bytes(self) -> int:
        """What counts against the user's storage, the trash included."""
        return sum(len(node.data) for node in self.nodes.values())

    def paths(self) -> list[str]:
        """The paths of all files that are not in the trash, duplicates included."""
        return sorted(self._path(node) for node in self.nodes.values() if node.mime != FOLDER and not node.trashed)

    def _path(self, node: Node) -> str:
        return node.name if node.parent in ("", ROOT) else f"{self._path(self.nodes[node.parent])}/{node.name}"

    # The quota

    def charge(self, kind: str) -> None:
        now = self.clock()
        units = UNITS[kind]
        while self._units and now - self._units[0][0] > 60:
            self._units.popleft()
        if sum(each for _, each in self._units) + units > self.unit_limit:
            raise Refusal(403, "userRateLimitExceeded")
        if kind == "write" and self.writes_limit:
            while self._writes and now - self._writes[0] > 1:
                self._writes.popleft()
            if len(self._writes) >= self.writes_limit:
                raise Refusal(429, "rateLimitExceeded")
            self._writes.append(now)
        self._units.append((now, units))
        self.most_units = max(self.most_units, sum(each for _, each in self._units))
        self.meter[kind] += 1

    # What the methods do

    def touch(self, node: Node) -> None:
        self.number += 1
        node.changed, node.changed_at = self.number, self.clock()

    def create(self, body: dict[str, Any], data: bytes) -> Node:
        parent = body.get("parents", [ROOT])[0]
        if parent not in self.nodes:
            raise Refusal(404, "notFound")
        node_id = body.get("id") or secrets.token_urlsafe(24)
        if node_id in self.nodes:
            raise Refusal(409, "fileIdInUse")
        node = Node(node_id, body["name"], parent, time.time(), body.get("mimeType", "application/octet-stream"), data)
        self.nodes[node.id] = node
        self.touch(node)
        return node

    def update(self, node_id: str, body: dict[str, Any], data: bytes | None) -> Node:
        node = self.find(node_id)
        node.data = node.data if data is None else data
        node.trashed = body.get("trashed", node.trashed)
        node.name = body.get("name", node.name)
        self.touch(node)
        return node

    def delete(self, node_id: str) -> None:
        node = self.find(node_id)
        if not self.may_delete:
            raise Refusal(403, "insufficientFilePermissions")
        for child in [each for each in self.nodes.values() if each.parent == node_id]:
            self.delete(child.id)
        del self.nodes[node.id]
        self.number += 1
        self.removed[node.id] = (self.number, self.clock())

    def find(self, node_id: str) -> Node:
        if node_id not in self.nodes:
            raise Refusal(404, "notFound")
        return self.nodes[node_id]

    def children(self, query: str, token: str | None, size: int) -> dict[str, Any]:
        match = re.fullmatch(r"'([^']+)' in parents and trashed = false", query)
        assert match, query
        now, first = self.clock(), int(token or 0)
        seen = [
            node
            for node in self.nodes.values()
            if node.parent == match[1] and not node.trashed and now - node.changed_at >= self.lag_seconds
        ]
        size = min(size, self.page_limit)
        more = {"nextPageToken": str(first + size)} if len(seen) > first + size else {}
        return {"files": [node.as_dict() for node in seen[first : first + size]], **more}

    def changes(self, token: str, size: int) -> dict[str, Any]:
        now, start = self.clock(), int(token)
        found = [
            (node.changed, {"fileId": node.id, "removed": False, "file": node.as_dict()}, node.changed_at)
            for node in self.nodes.values()
            if node.changed > start
        ]
        found += [
            (number, {"fileId": node_id, "removed": True}, at) for node_id, (number, at) in self.removed.items() if number > start
        ]
        found.sort(key=lambda each: each[0])
        visible = []
        for number, change, at in found:
            if now - at < self.lag_seconds:
                break
            visible.append((number, change))
        some = visible[: min(size, self.page_limit)]
        last = str(some[-1][0] if some else start)
        return {
            "changes": [change for _, change in some],
            "nextPageToken" if len(visible) > len(some) else "newStartPageToken": last,
        }


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    drive: DriveFake


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = 60

    def log_message(self, format: str, *args: object) -> None: ...

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except OSError:
            self.close_connection = True

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if urlsplit(self.path).path == "/batch/drive/v3":
            return self._batch(body)
        status, headers, data = respond(self.server.drive, self.command, self.path, dict(self.headers.items()), body)
        if status == 0:  # lost
            self.close_connection = True
            return None
        return self._send(status, headers, data)

    def _batch(self, body: bytes) -> None:
        message = BytesParser().parsebytes(b"Content-Type: " + self.headers["Content-Type"].encode() + b"\r\n\r\n" + body)
        parts = []
        for part in message.get_payload():
            head = part.get_payload().lstrip().splitlines()[0].split(" ")
            status, _, data = respond(self.server.drive, head[0], head[1], {}, b"")
            inner = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\n\r\n{data.decode()}"
            name = " ".join(part["Content-ID"].split()).strip("<>")
            parts.append(f"--b\r\nContent-Type: application/http\r\nContent-ID: <response-{name}>\r\n\r\n{inner}\r\n")
        self._send(200, {"Content-Type": "multipart/mixed; boundary=b"}, ("".join(parts) + "--b--").encode())

    def _send(self, status: int, headers: dict[str, str], data: bytes) -> None:
        self.send_response_only(status)
        for name, value in ({"Content-Type": "application/json"} | headers | {"Content-Length": str(len(data))}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = answer


Answer = tuple[int, dict[str, str], bytes]


def respond(drive: DriveFake, method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
    url = urlsplit(path)
    query = {name: values[0] for name, values in parse_qs(url.query).items()}
    headers = {name.lower(): value for name, value in headers.items()}
    with drive.lock:
        try:
            return _route(drive, method, url.path, query, headers, body)
        except Refusal as refusal:
            drive.refused[refusal.status] += 1
            error = {
                "code": refusal.status,
                "message": refusal.reason,
                "errors": [{"reason": refusal.reason, "domain": "usageLimits"}],
            }
            return refusal.status, {}, json.dumps({"error": error}).encode()


def _route(drive: DriveFake, method: str, path: str, query: dict[str, str], headers: dict[str, str], body: bytes) -> Answer:
    upload = "/upload/" in path
    name = path.partition("/drive/v3/")[2]
    if name == "changes/startPageToken":
        drive.charge("get")
        return _json({"startPageToken": str(drive.number)})
    if name == "changes":
        drive.charge("changes")
        return _json(drive.changes(query["pageToken"], int(query.get("pageSize", 100))))
    if name == "files/generateIds":
        drive.charge("get")
        return _json({"ids": [secrets.token_urlsafe(24) for _ in range(int(query.get("count", 10)))]})
    if name == "files" and method == "GET":
        drive.charge("list")
        return _json(drive.children(query["q"], query.get("pageToken"), int(query.get("pageSize", 100))))
    node_id = name.partition("files/")[2]
    if method == "GET":
        return _read(drive, node_id, query, headers)
    if query.get("uploadType") == "resumable":
        return _session(drive, method, path, query, headers, body)
    drive.charge("write")
    if method == "DELETE":
        drive.delete(node_id)
        return 204, {}, b""
    fields, data = _multipart(headers, body) if upload else (json.loads(body or b"{}"), None)
    if method == "PATCH":
        return _json(drive.update(node_id, fields, data).as_dict())
    node = drive.create(fields, data or b"")
    if drive.lost_answers:
        drive.lost_answers -= 1
        return 0, {}, b""
    return _json(node.as_dict())


def _read(drive: DriveFake, node_id: str, query: dict[str, str], headers: dict[str, str]) -> Answer:
    if query.get("alt") != "media":
        drive.charge("get")
        node = drive.find(node_id)
        return _json(node.as_dict() | {"capabilities": {"canAddChildren": True}})
    drive.charge("download")
    data = drive.find(node_id).data
    match = re.fullmatch(r"bytes=(\d+)-(\d+)", headers.get("range", ""))
    first, last = (int(match[1]), int(match[2])) if match else (0, len(data))
    if first >= len(data):
        raise Refusal(416, "requestedRangeNotSatisfiable")
    some = data[first : last + 1]
    extra = {"Content-Range": f"bytes {first}-{first + len(some) - 1}/{len(data)}"}
    if drive.cut_downloads:
        drive.cut_downloads -= 1
        some = some[: len(some) // 2]
    return 206 if match else 200, {"Content-Type": "application/octet-stream", **(extra if match else {})}, some


def _session(drive: DriveFake, method: str, path: str, query: dict[str, str], headers: dict[str, str], body: bytes) -> Answer:
    if method != "PUT":
        drive.charge("write")
        token = secrets.token_hex(8)
        drive.sessions[token] = {
            "body": json.loads(body),
            "data": b"",
            "total": int(headers["x-upload-content-length"]),
            "chunks": 0,
        }
        return 200, {"Location": f"{drive.endpoint}{path}?uploadType=resumable&upload_id={token}"}, b""
    session = drive.sessions.get(query["upload_id"])
    if session is None:
        raise Refusal(404, "notFound")
    match = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", headers["content-range"])
    if match:
        session["chunks"] += 1
        if session["chunks"] >= 2 and drive.session_cuts:
            drive.session_cuts -= 1
            session["data"] += body[: len(body) // 2 // 262_144 * 262_144]
            raise Refusal(503, "backendError")
        assert int(match[1]) == len(session["data"]), "a session goes on where it was interrupted"
        session["data"] += body
    if len(session["data"]) < session["total"]:
        got = len(session["data"])
        return 308, {"Range": f"bytes=0-{got - 1}"} if got else {}, b""
    return _json(drive.create(session["body"], session["data"]).as_dict())


def _multipart(headers: dict[str, str], body: bytes) -> tuple[dict[str, Any], bytes]:
    """Split fields and content, byte by byte: a parser of mail would change line ends."""
    boundary = re.search(r'boundary="?([^";]+)', headers["content-type"])
    if not boundary:
        return {}, body
    mark = b"--" + boundary[1].encode()
    first, second = body.index(mark), body.index(mark, body.index(mark) + 1)
    fields = body[body.index(b"\n\n", first) : second]
    return json.loads(fields), body[body.index(b"\n\n", second) + 2 : body.rindex(b"\n" + mark)]


def _json(document: dict[str, Any]) -> Answer:
    return 200, {}, json.dumps(document).encode()


@contextmanager
def drive_fake(**habits: Any) -> Iterator[DriveFake]:
    drive = DriveFake(**habits)
    with _Server(("127.0.0.1", 0), _Handler) as server:
        server.drive = drive
        drive.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield drive
        finally:
            server.shutdown()
            thread.join()
