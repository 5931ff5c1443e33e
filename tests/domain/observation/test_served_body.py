import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.agent_check import card, document

from lifesign.domain.observation.results import ResultClass
from lifesign.domain.observation.served_body import (
    ServedDocument,
    classify_card,
    classify_document,
    is_absent,
)

BODIES = st.binary(max_size=200) | st.builds(lambda text: json.dumps(text).encode(), st.text(max_size=50))


def as_document(value: Any) -> ServedDocument:
    return classify_document(json.dumps(value).encode(), content_type="application/json", is_json=True)


# ── a card ──


def test_document_with_members_of_a_card_is_a_card() -> None:
    body = json.dumps(card(name="A")).encode()
    for served in (classify_card(body, is_json=True), classify_card(body, is_json=False)):
        assert (served.result, served.reason) == (ResultClass.OK, "")
        assert served.card is not None
        assert served.card.name == "A"


def test_registry_record_of_a_card_counts_as_a_card() -> None:
    record = card(wellKnownURI="https://agent.example/.well-known/agent.json")
    assert classify_card(json.dumps(record).encode(), is_json=True).result is ResultClass.OK


@pytest.mark.parametrize("body", [b"", b" \r\n"])
@pytest.mark.parametrize("is_json", [True, False])
def test_empty_answer_is_neither_card_nor_document(body: bytes, *, is_json: bool) -> None:
    content_type = "application/json" if is_json else ""
    for served in (
        classify_card(body, is_json=is_json),
        classify_document(body, content_type=content_type, is_json=is_json),
    ):
        assert (served.result, served.reason) == (ResultClass.NOT_AN_AGENT, "an empty answer")


def test_html_page_is_no_card_and_malformed_json_is_an_invalid_card() -> None:
    page = classify_card(b"<!doctype html><p>Hello", is_json=False)
    assert (page.result, page.card) == (ResultClass.NOT_AN_AGENT, None)
    assert "HTML" in page.reason
    broken = classify_card(b'{"name": "A", ', is_json=True)
    assert broken.result is ResultClass.INVALID_DOCUMENT
    assert classify_card(b"[1, 2]", is_json=True).result is ResultClass.NOT_AN_AGENT


@given(BODIES)
def test_any_body_gives_a_card_or_a_reason(body: bytes) -> None:
    for served in (classify_card(body, is_json=True), classify_card(body, is_json=False)):
        assert (served.card is None) == bool(served.reason)
        assert (served.card is None) == (served.result is not ResultClass.OK)


# ── a health document ──


def test_valid_document_is_returned_with_its_findings() -> None:
    served = as_document(document("degraded", decay=None))
    assert (served.result, served.reason) == (ResultClass.OK, "")
    assert served.document is not None
    assert [finding.name for finding in served.findings] == ["null_for_absent"]


def test_invalid_document_differs_from_json_of_another_type() -> None:
    broken = as_document(document("excellent"))
    assert broken.result is ResultClass.INVALID_DOCUMENT
    assert "/health/status" in broken.reason
    assert [fault.name for fault in broken.findings] == ["unknown_value"]
    others: tuple[Any, ...] = ({"status": "UP"}, {"agent_id": "x", "uptime": 3}, [], None, "healthy")
    for other in others:
        assert as_document(other).result is ResultClass.NOT_AN_AGENT
    half = as_document({"agent_id": "x", "health": {"status": "healthy"}})
    assert half.result is ResultClass.INVALID_DOCUMENT
    assert "and 1 more" in half.reason


def test_answer_of_another_type_is_no_document() -> None:
    body = json.dumps(document()).encode()
    served = classify_document(body, content_type="text/html", is_json=False)
    assert (served.result, served.reason) == (ResultClass.NOT_AN_AGENT, "not JSON but 'text/html'")
    assert "no content type" in classify_document(body, content_type="", is_json=False).reason


@given(BODIES)
def test_any_body_gives_a_document_or_a_reason(body: bytes) -> None:
    served = classify_document(body, content_type="application/json", is_json=True)
    assert (served.document is None) == bool(served.reason)
    assert (served.document is None) == (served.result is not ResultClass.OK)


# ── whether to try the next location ──


@pytest.mark.parametrize("status", [200, 204, 400, 404, 405, 410, 422])
def test_absent_document_is_looked_for_at_the_next_url(status: int) -> None:
    assert is_absent(ResultClass.NOT_AN_AGENT, status)
    assert is_absent(ResultClass.HTTP_ERROR, status) == (status >= 400)


@pytest.mark.parametrize(
    "result", sorted(set(ResultClass) - {ResultClass.NOT_AN_AGENT, ResultClass.HTTP_ERROR})
)
def test_present_or_unreachable_document_is_the_answer(result: ResultClass) -> None:
    assert not is_absent(result, 404)


@pytest.mark.parametrize("status", [None, 500, 503])
def test_server_error_is_no_absent_document(status: int | None) -> None:
    assert not is_absent(ResultClass.HTTP_ERROR, status)
