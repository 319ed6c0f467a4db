"""Who may ask, and what pages may do: everything between the network and what this program answers.

    Host            only names this program goes by: a page of somebody else whose name leads here gets nothing
    token           in the address that is printed at the start, exchanged for a cookie that no script can read
    POST            JSON only, from a page of ours: its Origin, Sec-Fetch-Site and a word that only our pages can know
    size            of a request is bounded
    what pages may  by Content-Security-Policy: scripts, styles and connections of this program alone, in nobody's frame

The token is asked for on loopback, too: other accounts of the same machine reach it as well, and runs are started here in
the name of whoever started the dashboard.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import socket
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie

from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MOST_BODY = 64 << 10
FORM_WORD = "x-suture-form"
"""Header with the word that only our pages can know."""
LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; style-src-attr 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Vega sets sizes and colours of what it draws as style attributes, which can load nothing under it."""
HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
    "cache-control": "no-store",
}
LOCKED = (
    '<!doctype html><html lang=en><title>Suture</title><link rel=icon href="data:,"><h1>Not open to everybody</h1>'
    "<p>Open the address that <code>suture dashboard</code> printed when it was started: it ends with a token."
)
WELCOME = (
    '<!doctype html><html lang=en><title>Suture</title><link rel=icon href="data:,">'
    '<meta http-equiv=refresh content="0;url=/">'
    '<p><a href="/">Go on to the dashboard</a>'
)


@dataclass(frozen=True)
class Gate:
    """What this start of the dashboard lets through."""

    port: int
    host: str = "127.0.0.1"
    """The address it listens at."""
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    session: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    form: str = field(default_factory=lambda: secrets.token_urlsafe(32))

    @property
    def cookie(self) -> str:
        """Its name; cookies of one machine are not told apart by port."""
        return f"suture-{self.port}"

    def knows_host(self, told: str) -> bool:
        """Whether a request is for this program. Numbers are; of names only known ones, since a name can lead anywhere."""
        name, _, port = told.rpartition(":") if not told.endswith("]") else (told, "", "")
        name, port = (name, port) if name else (told, "")
        if port != str(self.port) and not (port == "" and self.port == 80):
            return False
        if is_loopback(self.host):
            return name.lower() in LOOPBACK
        names = {self.host.lower(), "localhost", socket.gethostname().lower(), socket.getfqdn().lower()}
        return name.lower() in names or _is_number(name)

    def opens(self, cookies: str) -> bool:
        """Whether a request comes from a browser that was given the token."""
        try:
            found = SimpleCookie(cookies).get(self.cookie)
        except CookieError:
            return False
        return found is not None and _same(found.value, self.session)

    def refusal(self, method: str, path: str, headers: Headers, query: str) -> Response | None:
        """Why a request is not answered; None: it is."""
        if not self.knows_host(headers.get("host", "")):
            return _no(421, "this address is not one that the dashboard goes by; open the one it printed")
        if method not in ("GET", "HEAD", "POST"):
            return _no(405, f"{method} is not answered here")
        came = headers.get("sec-fetch-site")
        if came not in (None, "same-origin", "none") and headers.get("sec-fetch-mode") != "navigate":
            return _no(403, "another page asked for this; only the dashboard's own pages are answered")
        if path == "/" and method == "GET" and (given := QueryParams(query).get("token")) is not None:
            return self._welcomed(given)
        if not self.opens(headers.get("cookie", "")):
            if path == "/":
                return HTMLResponse(LOCKED, 401)
            return _no(401, "open the address that `suture dashboard` printed: it ends with a token")
        return self._refused_post(headers, came) if method == "POST" else None

    def _welcomed(self, given: str) -> Response:
        if not _same(given, self.token):
            return HTMLResponse(LOCKED, 401)
        answer = HTMLResponse(WELCOME)
        answer.set_cookie(self.cookie, self.session, httponly=True, samesite="strict", path="/")
        return answer

    def _refused_post(self, headers: Headers, came: str | None) -> Response | None:
        if headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return _no(415, "only JSON is taken here")
        asked_by, here = headers.get("origin"), f"http://{headers.get('host', '')}"
        if asked_by != here if asked_by is not None else came != "same-origin":
            return _no(403, "another page asked for this; only the dashboard's own pages may change anything")
        if not _same(headers.get(FORM_WORD, ""), self.form):
            return _no(403, "this page is of an earlier start of the dashboard; load it again")
        return None


def _same(given: str, wanted: str) -> bool:
    """In a time that tells nothing of how much is right."""
    return hmac.compare_digest(given.encode(errors="replace"), wanted.encode())


def _no(status: int, why: str) -> Response:
    return JSONResponse({"error": why}, status)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _is_number(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


class Guard:
    """The outermost layer of the program."""

    def __init__(self, app: ASGIApp, gate: Gate) -> None:
        self.app, self.gate = app, gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, or pass on with bounds and headers."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = Headers(scope=scope)
        refusal = self.gate.refusal(scope["method"], scope["path"], headers, scope["query_string"].decode("latin-1"))
        told = headers.get("content-length", "0")
        if refusal is None and (not told.isdecimal() or int(told) > MOST_BODY):
            refusal = _no(413, f"a request may have at most {MOST_BODY} bytes")

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                kept = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    kept.setdefault(name, value)
                kept.setdefault("content-security-policy", POLICY)
            await send(message)

        await (refusal or self.app)(scope, _bounded(receive), with_headers)


def _bounded(receive: Receive) -> Receive:
    """A body that comes without its length is cut off where it is too long, and so is no JSON any more."""
    taken = 0

    async def bounded() -> Message:
        nonlocal taken
        message = await receive()
        if message["type"] == "http.request":
            taken += len(message.get("body", b""))
            if taken > MOST_BODY:
                return {"type": "http.request", "body": b"", "more_body": False}
        return message

    return bounded
