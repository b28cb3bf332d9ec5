"""A bucket as a store: S3 and services that speak its protocol, Google Cloud Storage, Azure Blob Storage; through obstore.

Timeouts and retries are the library's. It gives up at once on a refusal that arrives cut, so a quick failure is tried again. A
document is created with the service's own condition ("only if the key does not exist"). Whether the service honours it is found
out by trying, once, and remembered in the bucket (`agreement.py`); where it does not, `candidates.py` takes over.
"""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError, PreconditionError, UnauthenticatedError
from obstore.store import AzureStore, ObjectStore

from rl_swarm.clock import Clock
from rl_swarm.errors import NotFound, Refused
from rl_swarm.store.base import Store, Transient

PART_BYTES = 8 << 20  # a larger file is sent in parts, which cannot be created conditionally
PARTS_AT_ONCE = 4
NO_BUCKET = ("NoSuchBucket", "ContainerNotFound", "bucket does not exist")  # in the answers of the three services
OUT_OF_RANGE = ("416 ", "Wanted range starting at")  # likewise
LONGEST_REASON = 160
_QUERY = re.compile(r"\?[^\s)]*")  # of an address: Azure's signatures stand there


class BucketStore(Store):
    """`small` and `large` are two clients of one bucket, with timeouts for documents and for checkpoints."""

    attempts = 3
    retry_seconds = 5.0  # a failure that took longer has been retried
    parallel = 4

    def __init__(self, url: str, small: ObjectStore, large: ObjectStore, clock: Clock | None = None) -> None:
        super().__init__(url, clock)
        self._small, self._large = small, large

    @property
    def about(self) -> str:
        return f"{self.url}, a bucket whose service creates each key once"

    def _put(self, key: str, data: bytes) -> bool:
        with translated(key):
            return self._create(key, data)

    def _create(self, name: str, data: bytes) -> bool:
        """Create an object; False if there is one. After an answer that was lost on its way, that may be this very one."""
        try:
            obstore.put(self._small, name, data, mode="create")
        except (AlreadyExistsError, PreconditionError):
            return False
        return True

    def _rewrite(self, key: str, data: bytes) -> None:
        with translated(key):
            obstore.put(self._small, key, data)

    def _put_file(self, key: str, path: Path) -> bool:
        """Large files are created after a look: of two writers at the same moment the later one wins."""
        if path.stat().st_size <= PART_BYTES:
            return self._put(key, path.read_bytes())
        with translated(key):
            with contextlib.suppress(FileNotFoundError):
                obstore.head(self._small, key)
                return False
            with path.open("rb") as file:
                obstore.put(self._large, key, file, chunk_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE)
            return True

    def _get(self, key: str, limit: int, offset: int) -> bytes:
        with translated(key):
            return self._read(key, limit, offset)

    def _read(self, name: str, limit: int, offset: int) -> bytes:
        if offset < 0:
            offset = max(0, obstore.head(self._small, name)["size"] + offset)
        try:
            return bytes(obstore.get(self._small, name, options={"range": (offset, offset + limit + 1)}).bytes())
        except BaseError as error:
            if any(
                words in str(error) for words in OUT_OF_RANGE
            ):  # nothing is there: an empty document, or an offset beyond its end
                return b""
            raise

    def _get_file(self, key: str, path: Path, limit: int) -> None:
        with translated(key):
            self._fetch(key, key, path, limit)

    def _fetch(self, name: str, key: str, path: Path, limit: int) -> None:
        found = obstore.get(self._large, name)
        if (size := found.meta["size"]) > limit:
            raise Refused(f"{key} has {size} bytes, the limit for this file is {limit}: remove it")
        with path.open("wb") as target:
            for block in found.stream(min_chunk_size=1 << 20):
                target.write(block)

    def _size(self, key: str) -> int:
        with translated(key):
            return obstore.head(self._small, key)["size"]

    def _list(self, folder: str) -> list[str]:
        prefix = folder.rstrip("/")
        with translated(folder):
            found = obstore.list_with_delimiter(self._small, prefix)  # reads all pages
        folders = [name.rstrip("/").rpartition("/")[2] + "/" for name in found["common_prefixes"]]
        files = [entry["path"].rpartition("/")[2] for entry in found["objects"] if entry["path"] != prefix]  # that marks a folder
        return sorted([*folders, *files])

    def _list_from(self, folder: str, after: str, most: int) -> list[str]:
        """One request for a page of names; on Azure, where a listing cannot begin anywhere, all of them."""
        if isinstance(self._small, AzureStore):
            return super()._list_from(folder, after, most)
        prefix = folder.rstrip("/")
        with translated(folder):
            found = next(iter(obstore.list(self._small, prefix, offset=f"{prefix}/{after}", chunk_size=most)), [])
        names = (entry["path"].removeprefix(f"{prefix}/").partition("/") for entry in found)
        return [name + slash for name, slash, _ in names]  # a folder once for each file in it: all of them fill the page

    def _delete(self, key: str) -> None:
        with translated(key):
            self._remove(key)

    def _remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            obstore.delete(self._small, name)


@contextlib.contextmanager
def translated(key: str) -> Iterator[None]:
    """Translate errors of the library: not there yet, or away for now."""
    try:
        yield
    except FileNotFoundError as error:
        if any(word in str(error) for word in NO_BUCKET):
            raise Transient("there is no such bucket") from None
        raise NotFound(key) from None
    except (PermissionDeniedError, UnauthenticatedError):
        raise Transient("access denied: check the credentials and what they permit") from None
    except BaseError as error:  # anything that a service, a network or a proxy may do for a while
        raise Transient(reason(error)) from None


def reason(error: BaseError) -> str:
    """The first line of an error without the query of an address, which may hold a signature."""
    return _QUERY.sub("", str(error).partition("\n")[0])[:LONGEST_REASON]
