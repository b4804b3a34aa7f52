"""The routes of the HTTP port: files of the page, its data, metrics, and what is refused."""

import http.client
import json
import re
from collections.abc import Iterator
from importlib import resources
from typing import NamedTuple

import pytest

from gossipdp.runtime.observability.metrics import Metrics
from gossipdp.runtime.observability.page import published as published_module
from gossipdp.runtime.observability.page.published import Published
from gossipdp.runtime.observability.page.site import FILES, SECURE
from tests.runtime.observability.page.test_published import Row


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


class Served:
    """A server of a daemon's port, without the daemon."""

    def __init__(self) -> None:
        self.published = Published(patience=0.0)
        self._metrics = Metrics("0.1.0")
        self._address = self._metrics.serve("127.0.0.1:0", self.published)

    def ask(self, path: str, method: str = "GET", host: str = "localhost") -> Answer:
        connection = http.client.HTTPConnection(*self._address)
        try:
            connection.putrequest(method, path, skip_host=True)
            connection.putheader("Host", host)
            connection.endheaders()
            answer = connection.getresponse()
            return Answer(answer.status, dict(answer.headers), answer.read())
        finally:
            connection.close()

    def close(self) -> None:
        self._metrics.close()


@pytest.fixture
def served() -> Iterator[Served]:
    served = Served()
    yield served
    served.close()


@pytest.mark.parametrize("path", FILES)
def test_file_of_the_page__served_with_its_type_and_safe_headers(served: Served, path: str) -> None:
    name, kind = FILES[path]
    answer = served.ask(path)
    assert (answer.status, answer.headers["Content-Type"]) == (200, kind)
    assert answer.headers.items() >= SECURE.items()
    folder = resources.files(published_module.__package__) / "files"
    assert answer.body == (folder / name).read_bytes() and len(answer.body) == int(answer.headers["Content-Length"])


def test_every_file_of_the_folder_has_a_path() -> None:
    folder = resources.files(published_module.__package__) / "files"
    assert {each.name for each in folder.iterdir()} == {name for name, _ in FILES.values()}


def test_policy_lets_a_page_load_from_this_server_alone() -> None:
    policy = dict(rule.split(" ", 1) for rule in SECURE["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == policy["frame-ancestors"] == policy["form-action"] == policy["base-uri"] == "'none'"
    assert {policy[f"{kind}-src"] for kind in ("script", "style", "connect", "img")} == {"'self'"}


def test_pages_name_no_other_server_and_write_no_markup() -> None:
    folder = resources.files(published_module.__package__) / "files"
    for name in {name for name, _ in FILES.values()} - {"uplot.js", "uplot.LICENSE.txt"}:
        text = (folder / name).read_text("utf-8")
        assert set(re.findall(r"\w+://[^\"' ]+", text)) <= {"http://www.w3.org/2000/svg"}, name
        for writer in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
            assert writer not in text, name
        assert not re.search(r"<[^>]* (on\w+|style)=", text), name


def test_data_that_the_daemon_published__json_that_no_cache_keeps(served: Served) -> None:
    served.published.publish({"round": 7}, [{"name": "a"}], [Row(1.0), Row(2.0)])
    status, history = served.ask("/status.json"), served.ask("/history.json?since=1")
    assert json.loads(status.body) == {"status": {"round": 7}, "members": [{"name": "a"}]}
    assert json.loads(history.body) == [{"time": 2.0, "round": 0}]
    for answer in (status, history):
        assert (
            answer.headers.items()
            >= {**SECURE, "Content-Type": "application/json", "Cache-Control": "no-store"}.items()
        )


@pytest.mark.parametrize(
    "query", ["", "?since=", "?since=x", "?since=nan", "?since=inf", "?other=1", "?since=-1&since=9"]
)
def test_since_that_is_no_time__the_whole_history(served: Served, query: str) -> None:
    served.published.publish({}, [], [Row(1.0), Row(2.0)])
    assert len(json.loads(served.ask(f"/history.json{query}").body)) == 2


@pytest.mark.parametrize("path", ["/status.json", "/history.json"])
def test_daemon_that_publishes_nothing__503_and_the_request_counts_as_watching(served: Served, path: str) -> None:
    assert not served.published.due()
    answer = served.ask(path)
    assert (answer.status, answer.headers["Retry-After"]) == (503, "1") and served.published.due()


@pytest.mark.parametrize("path", ["/metrics", "/", "/page.js", "/nothing"])
def test_requests_for_other_pages_do_not_count_as_watching(served: Served, path: str) -> None:
    served.ask(path)
    assert not served.published.due()


@pytest.mark.parametrize(
    "path",
    [
        "/nothing", "/index.html", "/files/index.html", "/site.py", "/page.js/", "/../page.js", "/%2e%2e/site.py",
        "/..%2fsite.py", "/page.js%00", "/etc/passwd", "//etc/passwd", "/status.json/../../../etc/passwd", "/metrics/x",
    ],
)  # fmt: skip
def test_path_that_is_no_page__404_and_nothing_of_a_file(served: Served, path: str) -> None:
    answer = served.ask(path)
    assert (answer.status, answer.body) == (404, b"there is no such page\n")
    assert answer.headers.items() >= SECURE.items()


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
@pytest.mark.parametrize("path", ["/", "/status.json", "/metrics"])
def test_method_that_could_change_something__refused(served: Served, method: str, path: str) -> None:
    answer = served.ask(path, method)
    assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD") and not served.published.due()


def test_head__the_headers_of_get_without_its_body(served: Served) -> None:
    whole, head = served.ask("/page.css"), served.ask("/page.css", "HEAD")
    assert head.status == 200 and head.body == b"" and head.headers["Content-Length"] == str(len(whole.body))


@pytest.mark.parametrize("path", ["/", "/status.json", "/history.json", "/metrics"])
def test_name_of_another_host__refused_on_loopback(served: Served, path: str) -> None:
    served.published.publish({"round": 7}, [], [])
    answer = served.ask(path, host="rebound.example:9470")
    assert answer.status == 421 and b"round" not in answer.body


def test_metrics_are_served_beside_the_page(served: Served) -> None:
    answer = served.ask("/metrics")
    assert answer.status == 200 and b"gossipdp_build_info" in answer.body
