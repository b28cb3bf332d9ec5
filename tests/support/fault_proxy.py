"""An HTTP proxy on loopback that passes requests on to one server, and does to some of them what networks and services do.

delay     the answer comes late
error     500, and the server never saw the request
limit     429 with Retry-After, likewise
cut       half of the body arrives, then the connection ends
lost      the server did what was asked, and the connection ends without an answer
"""

import http.client
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "te", "upgrade", "proxy-connection"}
DELAY_SECONDS = 0.3


class FaultProxy(ThreadingHTTPServer):
    """`shares` says which part of the requests gets each fault; `down` refuses all. `done` counts faults and requests."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, target: str, seed: int, shares: dict[str, float]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target = urlsplit(target)
        self.shares = shares
        self.down = False
        self.done: Counter[str] = Counter()
        self._chance, self._lock = random.Random(seed), threading.Lock()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def draw(self) -> str:
        with self._lock:
            drawn, fault = self._chance.random(), ""
            for name, share in self.shares.items():
                drawn -= share
                if drawn < 0:
                    fault = name
                    break
            fault = "error" if self.down else fault
            self.done[fault or "passed"] += 1
            return fault


class _Handler(BaseHTTPRequestHandler):
    server: FaultProxy
    protocol_version = "HTTP/1.1"
    timeout = 60

    def log_message(self, format: str, *args: object) -> None: ...

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except OSError:  # a client that gave up
            self.close_connection = True

    def pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.server.draw()
        if fault == "error":
            return self._answer(500, {}, b"injected")
        if fault == "limit":
            return self._answer(429, {"Retry-After": "1"}, b"injected")
        if fault == "delay":
            time.sleep(DELAY_SECONDS)
        target = self.server.target
        assert target.hostname is not None
        connection = http.client.HTTPConnection(target.hostname, target.port, timeout=60)
        try:
            headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP_BY_HOP}
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in headers.items():  # Host stays as it was: it is signed
                connection.putheader(name, value)
            connection.endheaders(body)
            answer = connection.getresponse()
            data = answer.read()
        finally:
            connection.close()
        if fault == "lost":
            self.close_connection = True
            return None
        return self._answer(answer.status, dict(answer.getheaders()), data, cut=fault == "cut")

    def _answer(self, status: int, headers: dict[str, str], data: bytes, cut: bool = False) -> None:
        kept = {name: value for name, value in headers.items() if name.lower() not in HOP_BY_HOP | {"content-length"}}
        length = headers.get("Content-Length", str(len(data))) if self.command == "HEAD" else str(len(data))
        self.send_response_only(status)
        for name, value in (kept | ({} if status == 204 else {"Content-Length": length})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data[: len(data) // 2] if cut and len(data) > 1 else data)
        if cut:
            self.close_connection = True

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = do_PATCH = pass_on


@contextmanager
def fault_proxy(target: str, seed: int = 0, **shares: float) -> Iterator[FaultProxy]:
    with FaultProxy(target, seed, shares) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield proxy
        finally:
            proxy.shutdown()
            thread.join()
