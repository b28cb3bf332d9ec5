"""Cache encoded responses, so that many viewers of one version of a run cost one encoding."""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import msgspec
from fastapi import Request, Response

MOST_KEPT = 64
LARGEST_KEPT = 1 << 19  # bytes

JSON = "application/json"
Question = tuple[str, bytes]  # path and query, as they were sent


class Answers:
    """The newest response to each of the latest requests."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Question, tuple[Any, str, bytes]] = OrderedDict()
        self._lock = threading.Lock()

    def answer(self, request: Request, version: Any, make: Callable[[], Any]) -> Response:
        """Return the document as JSON, or 304 if the client has it already.

        `version` must change whenever the document may change. With None the document is made for every request.
        """
        question = (request.scope["path"], request.scope["query_string"])
        with self._lock:
            made_for, tag, body = self._kept.get(question, (None, "", b""))
        if version is None or made_for != version:
            body = msgspec.json.encode(make())
            tag = f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
            if version is not None and len(body) <= LARGEST_KEPT:
                self._keep(question, (version, tag, body))
        headers = {"ETag": tag, "Cache-Control": "private, no-cache"}
        if tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(body, media_type=JSON, headers=headers)

    def _keep(self, question: Question, answer: tuple[Any, str, bytes]) -> None:
        with self._lock:
            self._kept[question] = answer
            self._kept.move_to_end(question)
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
