import json
from pathlib import Path

import pytest
from tests.dashboard.conftest import Filled, Sample
from tests.support.dashboard_sample import KEYS
from tests.support.dashboard_visitor import Page

from lifesign.dashboard import assets
from lifesign.dashboard.error_messages import words_of
from lifesign.dashboard.responses import POLICY
from lifesign.domain.access.permissions import Role
from lifesign.domain.common.finding import Finding
from lifesign.domain.errors import InvalidRequest
from lifesign.domain.lifecycle.status_table import Status
from lifesign.errors import LifesignError
from lifesign.registry.errors import AgentGone, StaleVersion, TooManyRequests
from lifesign.storage.errors import StoreUnavailable

JSON = "application/json"


def is_our_page(page: Page) -> bool:
    is_html = page.headers["content-type"].startswith("text/html") and 'role="alert"' in page.html
    return is_html and page.headers["content-security-policy"] == POLICY


@pytest.mark.parametrize("path", ["/nowhere", "/agents/a/b/c", "/static/other.js", "/agents/a%00b", "/x/"])
def test_browser_gets_an_error_page_for_an_unknown_path(sample: Sample, path: str) -> None:
    seen, answer = sample.visitor().get(path), sample.visitor().get(path, accept=JSON)
    assert is_our_page(seen)
    assert "There is no page at this address" in seen.text
    assert (seen.status, answer.status) == (404, 404)
    assert json.loads(answer.body)["error"]["code"] == "not_found"


@pytest.mark.parametrize("path", ["/api/v1/nothing", "/dialects/x", "/.well-known/x", "/api/v1/agents/x"])
def test_api_paths_answer_json_to_every_client(sample: Sample, path: str) -> None:
    seen = sample.visitor().get(path, accept="text/html,*/*", x_api_key=KEYS[Role.READER])
    assert (seen.status, seen.headers["content-type"]) == (404, JSON)


@pytest.mark.parametrize(("path", "allowed"), [("/agents", "GET, HEAD"), ("/", "GET, HEAD")])
def test_wrong_method_on_a_page_lists_the_allowed_ones(sample: Sample, path: str, allowed: str) -> None:
    seen = sample.visitor().post(path, {"a": "b"}, accept="text/html")
    answer = sample.visitor().post(path, {"a": "b"}, accept=JSON)
    assert is_our_page(seen)
    for page in (seen, answer):
        assert (page.status, page.headers["allow"]) == (405, allowed)


def test_opening_a_form_url_shows_an_error_page_and_api_urls_answer_json(sample: Sample) -> None:
    opened = sample.visitor().get("/agents/translator/drain")
    assert (opened.status, opened.headers["allow"]) == (405, "POST")
    assert is_our_page(opened)
    probed = sample.visitor().post("/healthz", {}, accept="text/html")
    assert (probed.status, probed.headers["content-type"]) == (405, JSON)


def test_error_pages_send_hsts_if_the_public_url_is_https(filled: Filled, tmp_path: Path) -> None:
    with filled.served(tmp_path, public_url="https://registry.example") as served:
        seen = served.visitor().get("/nowhere")
        assert (seen.status, is_our_page(seen)) == (404, True)
        assert "max-age" in seen.headers["strict-transport-security"]


@pytest.mark.parametrize(
    ("error", "status", "after"),
    [(StoreUnavailable("it is unreachable"), 503, "2"), (TooManyRequests(1.2), 429, "2")],
)
def test_retry_after_is_shown(
    sample: Sample, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int, after: str
) -> None:
    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr("lifesign.dashboard.page_handler.PageHandler.count", refuse)
    seen = sample.visitor().get("/events")
    assert (seen.status, seen.headers["retry-after"], is_our_page(seen)) == (status, after, True)


def test_failure_outside_of_a_transaction_is_an_error_page(
    sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = assets.asset_path("icon.svg")
    monkeypatch.setattr(assets, "MEDIA_TYPES", {})
    seen, answer = sample.visitor().get(path), sample.visitor().get(path, accept=JSON)
    assert (seen.status, is_our_page(seen)) == (500, True)
    assert (answer.status, json.loads(answer.body)["error"]["code"]) == (500, "internal")


def invalid(*pointers: str) -> InvalidRequest:
    return InvalidRequest([Finding("number", pointer, "expected a number") for pointer in pointers])


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (invalid("/drain_timeout/seconds"), ["Drain timeout, seconds"]),
        (invalid("", "/pool"), ["", "Pool"]),
    ],
)
def test_form_error_names_the_fields_of_the_form(error: LifesignError, expected: list[str]) -> None:
    texts = words_of(error, is_form=True).split("; ")
    assert [text.rpartition(": ")[0] for text in texts] == expected
    assert all(text.endswith("expected a number") for text in texts)


@pytest.mark.parametrize(
    ("pointers", "expected"),
    [
        (["/pool"], ["Pool"]),
        (["/limit", "/limit", "/status"], ["limit", "Status"]),
        (["/before"], ["The", "Start"]),
    ],
)
def test_error_of_a_page_address_names_its_parameters(pointers: list[str], expected: list[str]) -> None:
    _, *texts = words_of(invalid(*pointers), is_form=False).removesuffix(".").split(". ")
    assert [text.partition(" ")[0] for text in texts] == expected


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (StaleVersion(1, 2, '"1-2"'), "Reload the page"),
        (AgentGone("translator", Status.DEAD, 1), "must register again"),
        (StoreUnavailable("it is unreachable"), ""),
    ],
)
def test_error_of_a_form_has_a_remedy(error: LifesignError, remedy: str) -> None:
    text = words_of(error, is_form=True)
    assert remedy in text
    assert (text == str(error)) is (remedy == "")
