"""Answers the requests of the daemon's HTTP port: the metrics, the status page and its data. It only reads.

Every path that exists is a key of one table, so no request names a file.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cache
from importlib import resources
from typing import Final
from urllib.parse import parse_qs
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from gossipdp.runtime.observability.page.published import Published

__all__ = ["FILES", "METRICS", "SECURE", "Site"]

METRICS: Final = "/metrics"
SCRIPT, STYLE = "text/javascript; charset=utf-8", "text/css; charset=utf-8"
FILES: Final = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", STYLE),
    "/plots.css": ("plots.css", STYLE),
    "/page.js": ("page.js", SCRIPT),
    "/text.js": ("text.js", SCRIPT),
    "/network.js": ("network.js", SCRIPT),
    "/lists.js": ("lists.js", SCRIPT),
    "/course.js": ("course.js", SCRIPT),
    "/plots.js": ("plots.js", SCRIPT),
    "/uplot.js": ("uplot.js", SCRIPT),
    "/uplot.css": ("uplot.css", STYLE),
    "/uplot.LICENSE.txt": ("uplot.LICENSE.txt", "text/plain; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
"""path -> file and type"""
SECURE: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""headers of every answer but the metrics"""


class Site:
    """A WSGI application.

    Args:
        metrics: answers scrapes.
        published: what the page shows.
    """

    def __init__(self, metrics: WSGIApplication, published: Published) -> None:
        self._metrics, self._published = metrics, published

    def __call__(self, environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        path, method = environ["PATH_INFO"], environ["REQUEST_METHOD"]
        if method not in ("GET", "HEAD"):
            return _answer(start, method, "405 Method Not Allowed", "only GET", more={"Allow": "GET, HEAD"})
        if path == METRICS:
            return self._metrics(environ, start)
        if path in FILES:
            name, kind = FILES[path]
            return _answer(start, method, "200 OK", _file(name), kind, {"Cache-Control": "no-cache"})
        match path:
            case "/status.json":
                told = self._published.status()
            case "/history.json":
                told = self._published.history(_since(environ.get("QUERY_STRING", "")))
            case _:
                return _answer(start, method, "404 Not Found", "there is no such page")
        if told is None:
            return _answer(start, method, "503 Service Unavailable", "the daemon is busy", more={"Retry-After": "1"})
        return _answer(start, method, "200 OK", told, "application/json")


def _answer(
    start: StartResponse,
    method: str,
    status: str,
    body: str | bytes,
    kind: str = "text/plain; charset=utf-8",
    more: dict[str, str] | None = None,
) -> list[bytes]:
    told = body if isinstance(body, bytes) else body.encode() + b"\n"
    headers = {"Content-Type": kind, "Content-Length": str(len(told)), "Cache-Control": "no-store", **SECURE}
    start(status, list({**headers, **(more or {})}.items()))
    return [] if method == "HEAD" else [told]


@cache
def _file(name: str) -> bytes:
    return (resources.files(__package__) / "files" / name).read_bytes()


def _since(query: str) -> float:
    """The time in the query. What is no number counts as none: every record is wanted."""
    try:
        since = float(parse_qs(query)["since"][0])
    except (KeyError, ValueError):
        return -math.inf
    return since if math.isfinite(since) else -math.inf
