"""Encode answers once for all who ask: the same question about the same version of a run is answered from memory."""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import msgspec
from fastapi import Request, Response

MOST_KEPT = 128
LARGEST_KEPT = 1 << 19  # bytes

JSON = "application/json"


class Answers:
    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[Any, ...], tuple[str, bytes]] = OrderedDict()
        self._lock = threading.Lock()

    def answer(self, request: Request, version: tuple[Any, ...] | None, make: Callable[[], Any]) -> Response:
        """Return the document as JSON, or 304 if the caller has it already.

        `version` changes whenever the document may; with None it is made each time.
        """
        key = (request.url.path, request.url.query, version)
        with self._lock:
            kept = self._kept.get(key) if version else None
        if kept is None:
            body = msgspec.json.encode(make())
            kept = (f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"', body)
            if version and len(body) <= LARGEST_KEPT:
                with self._lock:
                    self._kept[key] = kept
                    while len(self._kept) > MOST_KEPT:
                        self._kept.popitem(last=False)
        tag, body = kept
        headers = {"ETag": tag, "Cache-Control": "private, no-cache"}
        if tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(body, media_type=JSON, headers=headers)
