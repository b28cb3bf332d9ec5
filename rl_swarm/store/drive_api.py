"""Calls of Google Drive's API v3, one function each: quota units, threads, errors. Knows nothing of keys.

Quota: https://developers.google.com/workspace/drive/api/guides/limits counts units per minute and user. A token bucket keeps this
process within a share of them, and below that for a while after a refusal.
"""

import json
import os
import random
import threading
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any

import google.auth
import httplib2
from google.auth.credentials import with_scopes_if_required
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError
from google.oauth2.credentials import Credentials
from google_auth_httplib2 import AuthorizedHttp
from googleapiclient import discovery_cache
from googleapiclient.discovery import build_from_document
from googleapiclient.errors import HttpError
from googleapiclient.http import MediaFileUpload, MediaInMemoryUpload, MediaIoBaseDownload

from rl_swarm.clock import Clock
from rl_swarm.errors import ConfigError, NotFound, Refused
from rl_swarm.store.base import Transient

SCOPE = "https://www.googleapis.com/auth/drive"  # of a service account, which sees only what is shared with it
EMULATOR = "DRIVE_EMULATOR_HOST"  # the address of a fake, for tests
LIST, GET, DOWNLOAD, WRITE = 100, 5, 200, 50  # units
UNITS_A_MINUTE = 325_000  # of one user, in all processes together
SHARE = 1 / 16  # of them that one process takes at most: a user may run this many nodes
BURST_SECONDS = 20.0  # units that were not used, of as many seconds, may be used later
SLOWEST = 1 / 4  # of its usual rate, to which a process falls after refusals
RECOVERY = 1.1  # growth of the rate with each call that is not refused
TIMEOUT_SECONDS = 20.0
CHUNK_BYTES = 8 << 20
PAGE = 1000
IDS_AT_ONCE = 100
CALL_ATTEMPTS = 4
PAUSE_SECONDS = 0.5
FIELDS = "id,name,mimeType,parents,trashed,md5Checksum,size,createdTime"
FOLDER = "application/vnd.google-apps.folder"
LIMITS = ("rateLimitExceeded", "userRateLimitExceeded", "sharingRateLimitExceeded", "backendError")
FORBIDDEN = "insufficientFilePermissions"

BROKEN = (OSError, HTTPException, httplib2.HttpLib2Error)  # what the library raises if the network fails

File = Mapping[str, Any]


class Forbidden(Refused):
    """This user may not do that with this file."""


class TokenBucket:
    """`take` waits until so many units may be used; `refused` makes it slower, and every later call a little faster again."""

    def __init__(self, rate: float, clock: Clock) -> None:
        self.usual, self.clock = rate, clock
        self._rate, self._units, self._at = rate, rate * BURST_SECONDS, clock.monotonic()
        self._lock = threading.Lock()

    def take(self, units: int) -> None:
        with self._lock:
            now = self.clock.monotonic()
            self._units = min(self._units + (now - self._at) * self._rate, self.usual * BURST_SECONDS) - units
            self._at = now
            self._rate = min(self._rate * RECOVERY, self.usual)
            wait = max(0.0, -self._units / self._rate)
        if wait:
            self.clock.sleep(wait)

    def refused(self) -> None:
        with self._lock:
            self._rate = max(self._rate / 2, self.usual * SLOWEST)


class DriveApi:
    """`calls` and `units` count what was asked for."""

    def __init__(self, clock: Clock) -> None:
        self._credentials, self._document = _credentials(), _document()
        self._made: list[AuthorizedHttp] = []
        self._idle: list[AuthorizedHttp] = []
        self._ids: list[str] = []
        self._lock = threading.RLock()
        self.bucket = TokenBucket(UNITS_A_MINUTE / 60 * SHARE, clock)
        self.calls: Counter[str] = Counter()
        self._chance = random.Random()
        with self._connection() as http:
            self._service = build_from_document(self._document, http=http)
        weakref.finalize(self, _close, self._made)

    def get(self, file_id: str, fields: str = FIELDS) -> File:
        found: File = self._call(GET, "get", self._service.files().get(fileId=file_id, fields=fields, supportsAllDrives=True))
        return found

    def children(self, folder_id: str) -> Iterator[File]:
        """Read all pages of what lies in a folder. It may lag."""
        token = None
        while True:
            request = self._service.files().list(
                q=f"'{folder_id}' in parents and trashed = false",
                fields=f"nextPageToken,files({FIELDS})",
                pageSize=PAGE,
                pageToken=token,
                supportsAllDrives=True,
                includeItemsFromAllDrives=True,
            )
            answer = self._call(LIST, "list", request)
            yield from answer.get("files", [])
            token = answer.get("nextPageToken")
            if token is None:
                return

    def start_of_changes(self, drive_id: str | None) -> str:
        request = self._service.changes().getStartPageToken(supportsAllDrives=True, **_of(drive_id))
        return str(self._call(GET, "get", request)["startPageToken"])

    def changes(self, token: str, drive_id: str | None) -> tuple[list[Any], str]:
        """Return what has changed since the token, and the next token."""
        found: list[Any] = []
        while True:
            request = self._service.changes().list(
                pageToken=token,
                pageSize=PAGE,
                fields=f"nextPageToken,newStartPageToken,changes(fileId,removed,file({FIELDS}))",
                supportsAllDrives=True,
                includeItemsFromAllDrives=True,
                **_of(drive_id),
            )
            answer = self._call(LIST, "changes", request)
            found += answer.get("changes", [])
            if "newStartPageToken" in answer:
                return found, answer["newStartPageToken"]
            token = answer["nextPageToken"]

    def make_folder(self, name: str, parent: str) -> File:
        body = {"name": name, "parents": [parent], "mimeType": FOLDER}
        return self._create(body, "folder")

    def create(self, name: str, parent: str, data: bytes) -> File:
        return self._create({"name": name, "parents": [parent]}, "create", MediaInMemoryUpload(data))

    def create_from(self, name: str, parent: str, path: Path) -> File:
        """Upload a file in chunks, in a session that goes on where it was interrupted."""
        media = MediaFileUpload(str(path), "application/octet-stream", chunksize=CHUNK_BYTES, resumable=True)
        return self._create({"name": name, "parents": [parent]}, "upload", media)

    def update(self, file_id: str, data: bytes, trashed: bool = False) -> File:
        request = self._service.files().update(
            fileId=file_id,
            body={"trashed": True} if trashed else {},
            media_body=MediaInMemoryUpload(data),
            fields=FIELDS,
            supportsAllDrives=True,
        )
        found: File = self._call(WRITE, "update", request)
        return found

    def read(self, file_id: str, first: int, last: int) -> bytes:
        request = self._service.files().get_media(fileId=file_id, supportsAllDrives=True)
        request.headers["Range"] = f"bytes={first}-{last}"
        return bytes(self._call(DOWNLOAD, "download", request))

    def read_to(self, file_id: str, target: IO[bytes]) -> None:
        request = self._service.files().get_media(fileId=file_id, supportsAllDrives=True)
        with self._connection() as request.http:
            chunks = MediaIoBaseDownload(target, request, chunksize=CHUNK_BYTES)
            done = False
            while not done:
                self.bucket.take(DOWNLOAD)
                self.calls["download"] += 1
                with self._translated():
                    _, done = chunks.next_chunk()

    def delete(self, file_ids: Sequence[str]) -> list[str]:
        """Delete for good, many in one request; return the ids that this user may not delete."""
        kept, failures = list[str](), list[Exception]()

        def answered(file_id: str, response: object, error: Exception | None) -> None:
            try:
                with self._translated():
                    if error:
                        raise error
            except Forbidden:
                kept.append(file_id)
            except NotFound:
                return
            except Transient as failure:
                failures.append(failure)

        batch = self._service.new_batch_http_request(callback=answered)
        for file_id in file_ids:
            batch.add(self._service.files().delete(fileId=file_id, supportsAllDrives=True), request_id=file_id)
        self.bucket.take(WRITE * len(file_ids))
        self.calls["delete"] += len(file_ids)
        with self._translated(), self._connection() as http:
            batch.execute(http=http)
        if failures:
            raise failures[0]
        return kept

    def _create(self, body: dict[str, Any], kind: str, media: Any = None) -> File:
        """Create a file under an id that was asked for before: after a lost answer it is there once, and not twice."""
        body = body | {"id": self._next_id()}
        options = {"media_body": media} if media else {}
        request = self._service.files().create(body=body, fields=FIELDS, supportsAllDrives=True, **options)
        try:
            found: File = self._call(WRITE, kind, request)
            return found
        except _Exists:
            return self.get(body["id"])

    def _next_id(self) -> str:
        with self._lock:
            if not self._ids:
                request = self._service.files().generateIds(count=IDS_AT_ONCE, fields="ids")
                self._ids = self._call(GET, "get", request)["ids"]
            return self._ids.pop()

    def _call(self, units: int, kind: str, request: Any) -> Any:
        """Make one request, with growing pauses between the tries: an operation of the store may need many of them."""
        pause = PAUSE_SECONDS
        for left in reversed(range(CALL_ATTEMPTS)):
            self.bucket.take(units)
            self.calls[kind] += 1
            try:
                with self._translated(), self._connection() as http:
                    return request.execute(http=http) if request.resumable is None else self._upload(request, http)
            except _Exists:
                raise
            except Transient as error:
                failure = error
            if left:
                self.bucket.clock.sleep(pause * (0.5 + self._chance.random()))
                pause *= 2
        raise failure

    def _upload(self, request: Any, http: AuthorizedHttp) -> Any:
        """Send all chunks. After a failure the library asks the session how much has arrived, and goes on from there."""
        answer, failures = None, 0
        while answer is None:
            try:
                _, answer = request.next_chunk(http=http)
                failures = 0
            except (HttpError, *BROKEN) as error:
                failures += 1
                if failures > 3 or (isinstance(error, HttpError) and error.status_code < 500 and error.status_code != 429):
                    raise
                self.bucket.clock.sleep(PAUSE_SECONDS * failures)
        return answer

    @contextmanager
    def _connection(self) -> Iterator[AuthorizedHttp]:
        """Lend a connection to one thread: the library's are not for several at once."""
        with self._lock:
            http = self._idle.pop() if self._idle else None
        if http is None:
            plain = httplib2.Http(timeout=TIMEOUT_SECONDS)
            plain.redirect_codes = plain.redirect_codes - {308}  # an upload session's "go on" is no redirect
            http = AuthorizedHttp(self._credentials, http=plain)
            self._made.append(http)
        try:
            yield http
        except BROKEN:
            http.http.close()  # it may be in the middle of an answer; the next request opens it again
            raise
        finally:
            self._idle.append(http)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except HttpError as error:
            raise self._meaning(error) from None
        except (*BROKEN, GoogleAuthError, ValueError) as error:  # ValueError: JSON that was cut
            raise Transient(f"{type(error).__name__}: {error}"[:160]) from None

    def _meaning(self, error: HttpError) -> Exception:
        status, reasons = error.status_code, _reasons(error)
        if status == 404:
            return NotFound("no such file")
        if status == 409:
            return _Exists("a conflict")
        if status == 429 or reasons & set(LIMITS):
            self.bucket.refused()
            return Transient("over the quota of requests")
        if status == 403 and FORBIDDEN in reasons:
            return Forbidden("this user may not change the file: let its owner do it, or ask for edit rights")
        return Transient(f"{status} {', '.join(sorted(reasons)) or 'without a reason'}")


def _close(connections: list[AuthorizedHttp]) -> None:
    for each in connections:
        each.http.close()


class _Exists(Transient):
    """A file of this id exists."""


def _reasons(error: HttpError) -> set[str]:
    details = error.error_details
    return {str(each.get("reason", "")) for each in details if isinstance(each, dict)} if isinstance(details, list) else set()


def _of(drive_id: str | None) -> dict[str, str]:
    return {"driveId": drive_id} if drive_id else {}


def _credentials() -> Any:
    if os.environ.get(EMULATOR):
        return Credentials(token="token-of-the-emulator")  # type: ignore[no-untyped-call]
    try:
        found, _ = google.auth.default()
    except DefaultCredentialsError:
        raise ConfigError(
            "GDRIVE_PATH needs credentials for Google Drive, none were found: set GOOGLE_APPLICATION_CREDENTIALS, "
            "docs/operating.md says how to get them"
        ) from None
    return with_scopes_if_required(found, [SCOPE])  # type: ignore[no-untyped-call]  # a person's have what the person granted


def _document() -> dict[str, Any]:
    """The description of the API that comes with the library; for tests, with the address of a fake."""
    path = Path(discovery_cache.__file__).parent / "documents" / "drive.v3.json"
    document: dict[str, Any] = json.loads(path.read_text())
    if address := os.environ.get(EMULATOR):
        document["rootUrl"] = document["baseUrl"] = address.rstrip("/") + "/"
        document["baseUrl"] += document["servicePath"]
    return document
