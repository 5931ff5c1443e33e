import base64
import hashlib
import re
from html.parser import HTMLParser
from typing import Any

from lifesign.registry.openapi.api_page import HEADERS, STYLE, api_page
from tests.support.registry_api import RegistryApi

from lifesign.registry.openapi.document import openapi_document
from lifesign.registry.operation_table import OPERATIONS

VOID = {"meta", "wbr", "!doctype"}
ATTACK = "<script>alert('x')</script>\" onload='y' `<img src=x>`"


class Parsed(HTMLParser):
    """A page taken apart; fails where tags do not close as they opened."""

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(page.decode())
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def page_of(document: dict[str, Any]) -> Parsed:
    return Parsed(api_page(document))


def poisoned(value: Any) -> Any:
    """Put an attack into every text that is no reference, type or name of ours."""
    if isinstance(value, dict):
        return {
            name: ATTACK
            if name in {"description", "summary", "title", "version", "pattern"} and isinstance(inner, str)
            else poisoned(inner)
            for name, inner in value.items()
        }
    return [poisoned(inner) for inner in value] if isinstance(value, list) else value


def test_every_operation_is_there_with_its_members_bounds_and_an_example() -> None:
    document = openapi_document(OPERATIONS)
    page = page_of(document)
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(set(ids)) == len(ids)
    for item in document["paths"].values():
        for method, operation in item.items():
            if method != "parameters":
                assert operation["operationId"] in ids
                assert operation["summary"] in page.text
    assert "unhealthy_after_seconds" in page.text
    assert "at most 604,800" in page.text
    assert "End the life of an agent of this id that is still alive, and begin a new one" in page.text
    assert '"capabilities": ["billing", "invoicing"]' in page.text
    assert "-H 'If-Match: \"14\"'" in page.text


def test_delivery_to_a_webhook_is_there_with_its_headers_and_body() -> None:
    page = page_of(openapi_document(OPERATIONS))
    assert "deliver_events" in {attributes.get("id") for _, attributes in page.tags}
    for shown in ("Deliveries to webhooks", "webhook-signature", "webhook_id", "registry.events", "2XX"):
        assert shown in page.text


def test_all_links_lead_somewhere() -> None:
    page = page_of(openapi_document(OPERATIONS))
    ids = {attributes["id"] for _, attributes in page.tags if "id" in attributes}
    links = {attributes["href"] for tag, attributes in page.tags if tag == "a"}
    assert links - {f"#{one}" for one in ids} == {"openapi.json"}


def test_nothing_that_the_document_says_becomes_markup() -> None:
    page = page_of(poisoned(openapi_document(OPERATIONS)))
    assert ATTACK.replace("`", "") in page.text
    assert not {tag for tag, _ in page.tags} & {"script", "img"}
    assert not any("onload" in attributes for _, attributes in page.tags)


def test_the_page_needs_no_script_and_fetches_nothing() -> None:
    page = page_of(openapi_document(OPERATIONS))
    tags = {tag for tag, _ in page.tags}
    assert not tags & {"script", "link", "img", "iframe", "object", "form"}
    assert not any({"style", "src"} & set(attributes) for _, attributes in page.tags)
    assert not re.search(r"url\(|@import", STYLE)


def test_its_policy_allows_its_own_style_and_nothing_else() -> None:
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    policy = HEADERS["Content-Security-Policy"]
    assert policy.startswith(f"default-src 'none'; style-src 'sha256-{digest}';")
    assert f"<style>{STYLE}</style>".encode() in api_page(openapi_document(OPERATIONS))


async def test_it_is_served_without_a_key(api: RegistryApi) -> None:
    answer = await api.ask("GET", "/docs", key=None)
    assert answer.status == 200
    assert answer.header("content-type") == "text/html; charset=utf-8"
    assert answer.header("content-security-policy") == HEADERS["Content-Security-Policy"]
    assert answer.header("x-content-type-options") == "nosniff"
    Parsed(answer.body)
    etag = str(answer.header("etag"))
    assert (await api.ask("GET", "/docs", key=None, headers={"If-None-Match": etag})).status == 304
