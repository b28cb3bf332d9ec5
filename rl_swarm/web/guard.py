"""Decide who may use the server: anyone with the token or, without one, this machine only. Adds the security headers."""

import hmac
from ipaddress import ip_address
from urllib.parse import urlsplit

from fastapi import Request, Response
from fastapi.responses import JSONResponse
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
OPEN = ("/api/healthz",)  # needs no token; nor do the page and its files, which contain no data


def is_loopback(host: str) -> bool:
    """Whether a name or an address means this machine."""
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Guard:
    """Check every request before the application sees it, and add the security headers to every response.

    Without a token the server listens on loopback only, and the Host header must name this machine. That stops DNS rebinding: a
    foreign page whose name resolves to 127.0.0.1 sends its own name.
    """

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self.app = app
        self.token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        answer = refused(Request(scope), self.token) if scope["type"] == "http" else None
        await (answer or self.app)(scope, receive, send_guarded)


def refused(request: Request, token: str | None) -> Response | None:
    """Return the response that refuses a request; None if it may pass."""
    if request.method != "GET":
        return JSONResponse({"detail": "this server only shows runs: use GET"}, 405, {"Allow": "GET"})
    if token is None:
        try:
            host = urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
        except ValueError:
            host = ""
        return None if is_loopback(host) else JSONResponse({"detail": "open it as http://127.0.0.1, or set a token"}, 421)
    path = request.scope["path"]  # not request.url: older Starlette builds it from the Host header, which the client chooses
    if path in OPEN or not (path.startswith("/api/") or path == "/metrics"):
        return None
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode("utf-8", "replace"), token.encode()):
        return None
    detail = "a token is needed: send 'Authorization: Bearer TOKEN', or open the address that 'rl-swarm web' has printed"
    return JSONResponse({"detail": detail}, 401, {"WWW-Authenticate": "Bearer"})
