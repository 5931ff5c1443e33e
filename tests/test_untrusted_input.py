"""Input of a stranger makes a reader raise only its own errors."""

import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic_core import PydanticCustomError
from tests.support.definitions import definition_of
from tests.support.properties import examples
from tests.support.spoiled import cut_and_joined, spoiled, spoiled_once
from tests.support.stranger_samples import (
    ANSWERS,
    CARDS,
    DEFINITION,
    DIRECTORIES,
    EVENTS,
    HEALTH,
    RECORD_OF_AGENT,
    ROBOTS,
    STREAM,
    TEXT_LISTS,
    WORKFLOW,
)
from yarl import URL

from lifesign.client.candidate_urls import announced_health, health_places, parse_entered_url
from lifesign.client.event_stream import EventStreamParser
from lifesign.client.registry_connection import RegistryReply, read_answer
from lifesign.client.registry_errors import InvalidAnswer, error_of
from lifesign.domain.a2a.agent_card import read_agent_card
from lifesign.domain.a2a.announcement import announce_health
from lifesign.domain.a2a.response_outcome import classify_json
from lifesign.domain.a2a.stream_outcome import read_event_stream
from lifesign.domain.activity.opencode_event import read_event
from lifesign.domain.errors import InvalidDocument, InvalidFile
from lifesign.domain.files.workflow_file import read_workflow
from lifesign.domain.health.document_reader import read_document
from lifesign.domain.models.agents import AgentRecord
from lifesign.domain.net.allowed_addresses import vet_url, without_password, without_passwords
from lifesign.domain.observation.message_answer import classify_answer
from lifesign.domain.observation.served_body import classify_card, classify_document
from lifesign.domain.parsing.bounded_json import NotJson, TooComplex
from lifesign.domain.parsing.json_limits import check_json_size, is_finite
from lifesign.domain.targets.display_name import display_name
from lifesign.domain.targets.opt_out_proof import is_proven, origin_of
from lifesign.domain.targets.target import read_target
from lifesign.domain.text.safe_text import harmless
from lifesign.errors import InvalidValue
from lifesign.http_client.headers import max_age_seconds, status_links
from lifesign.http_client.redirects import refusal, resolve_url
from lifesign.prober.directories.document_order import Endless, TooManyDocuments, Walk
from lifesign.prober.directories.format_choice import BUILT_IN, describe
from lifesign.prober.directories.format_parser import Document, NotReadable
from lifesign.prober.directories.target_collection import Gathered, TooManyEntries
from lifesign.prober.probe.robots_rules import may_fetch, read_robots


@dataclass(frozen=True)
class Reader:
    """One reader of what strangers send."""

    read: Callable[[bytes], object]
    samples: list[Any]
    """Bytes as they are; all else as JSON."""
    own: tuple[type[Exception], ...] = ()
    """The allowed exceptions."""


def in_directory(name: str) -> Callable[[bytes], object]:
    def read(body: bytes) -> None:
        document = Document(body, "", "https://directory.example/list")
        one = BUILT_IN[name]
        one.recognises(document)
        describe(document)
        walk, gathered = Walk(), Gathered(max_entries=1_000)
        walk.take(document, 0)
        page = one.read(document)
        gathered.add(page.entries, document.url)
        walk.follow(document, page, 0)
        gathered.findings()
        gathered.digest()
        assert all(entry.url.encode() for entry in gathered.entries)

    return read


def whole_card(body: bytes) -> None:
    served = classify_card(body, is_json=True)
    card = read_agent_card(body)
    url = URL("https://card.example/a/.well-known/agent-card.json")
    announced = announced_health(card, url, ("/health", "http://[::1"))
    health_places(parse_entered_url("https://card.example/a"), url, announced)
    assert served.reason == "" or served.card is None


def with_announcement(body: bytes) -> None:
    card = json.loads(body)
    announce_health(card)


def answer_to_message(body: bytes) -> None:
    for status, content_type in (
        (200, "application/json"),
        (200, "text/event-stream"),
        (400, ""),
        (500, "text/html"),
    ):
        classify_answer(status, content_type, body, is_rpc=True)
        classify_answer(status, content_type, body, is_rpc=False)


def text(read: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda body: read(body.decode("utf-8", "surrogateescape"))


def url_in_any_use(url: str) -> None:
    read_target(url)
    vet_url(url)
    origin_of(url)
    display_name("a", "b", url)
    without_password(url)
    without_passwords(url)
    harmless(url)
    target = resolve_url(URL("https://a.example/"), url)
    refusal(URL("https://a.example/"), target, has_token=True, may_leave_origin=True)


def fields(value: str) -> None:
    status_links([value])
    max_age_seconds([value])


def free_json(body: bytes) -> None:
    value = json.loads(body)
    if isinstance(value, dict):
        assert is_finite(check_json_size(value, 8, 10_000))


def refusal_of_registry(body: bytes) -> None:
    str(error_of(400, json.loads(body), reason="x", retry_after_s=None))


READERS: dict[str, Reader] = {
    **{
        f"the directory format {name}": Reader(
            in_directory(name), samples, (NotReadable, TooManyEntries, Endless, TooManyDocuments)
        )
        for name, samples in DIRECTORIES.items()
    },
    "a list in text": Reader(
        in_directory("plain_list"), TEXT_LISTS, (NotReadable, TooManyEntries, Endless, TooManyDocuments)
    ),
    "a card": Reader(whole_card, CARDS),
    "a card that is announced": Reader(with_announcement, CARDS, (InvalidValue,)),
    "a health document": Reader(read_document, HEALTH, (InvalidDocument,)),
    "a served document": Reader(lambda body: classify_document(body, content_type="", is_json=True), HEALTH),
    "an answer to a message": Reader(answer_to_message, [*ANSWERS, STREAM]),
    "an inspected answer": Reader(classify_json, ANSWERS, (NotJson, TooComplex)),
    "an inspected stream": Reader(
        read_event_stream, [STREAM], ()
    ),
    "an event stream": Reader(lambda body: EventStreamParser().feed(body), [STREAM], (InvalidAnswer,)),
    "an event of a session": Reader(text(read_event), EVENTS),
    "a robots.txt": Reader(
        lambda body: may_fetch(read_robots(200, body) or pytest.fail("no rules"), "/a/%zz?b"), [ROBOTS]
    ),
    "a proof of an opt-out": Reader(
        lambda body: is_proven("lifesign-proof=x", body), [b"x", b"# a\nx\n"]
    ),
    "an answer of a registry": Reader(
        lambda body: read_answer(
            AgentRecord, RegistryReply(status=200, content_type="application/json", body=body, sent_at_s=0.0)
        ),
        [RECORD_OF_AGENT],
        (InvalidAnswer,),
    ),
    "a refusal of a registry": Reader(
        refusal_of_registry, [{"error": {"code": "agent_gone", "message": "m", "details": {"a": 1}}}]
    ),
    "a definition": Reader(
        text(definition_of), [DEFINITION.encode()], (InvalidFile,)
    ),
    "a workflow": Reader(text(read_workflow), [WORKFLOW.encode()], (InvalidFile,)),
    "a URL": Reader(
        text(url_in_any_use),
        [b"https://user:pa/ss@a.example:80/a/../b?c#d", b"http://[::ffff:1.2.3.4%25x]:1", "http://ä.example".encode()],
    ),
    "a header field": Reader(text(fields), [b'</a>; rel="status"; x=y, <b>;rel=status', b'max-age="30", x']),
    "free JSON": Reader(free_json, [{"a": 10**300, "b": {"c": ["1e999"]}}], (PydanticCustomError,)),
}  # fmt: skip
PARSED = ("a card that is announced", "a refusal of a registry", "free JSON")
"""Readers of what was parsed before."""


def check(reader: Reader, body: bytes) -> None:
    with contextlib.suppress(*reader.own):
        reader.read(body)


def is_bytes(name: str) -> bool:
    return isinstance(READERS[name].samples[0], bytes)


@pytest.mark.parametrize("name", [name for name in READERS if not is_bytes(name)])
def test_one_invalid_value_raises_only_the_readers_exception(name: str) -> None:
    reader = READERS[name]
    for value in spoiled_once([sample for sample in reader.samples if not isinstance(sample, bytes)]):
        check(reader, json.dumps(value).encode())


@pytest.mark.parametrize("name", [name for name in READERS if not is_bytes(name)])
@settings(max_examples=examples(100))
@given(data=st.data())
def test_several_invalid_values_raise_only_the_readers_exception(name: str, data: st.DataObject) -> None:
    reader = READERS[name]
    samples = [sample for sample in reader.samples if not isinstance(sample, bytes)]
    check(reader, json.dumps(data.draw(spoiled(samples))).encode())


@pytest.mark.parametrize("name", [name for name in READERS if name not in PARSED])
@settings(max_examples=examples(50))
@given(data=st.data())
def test_joined_fragments_raise_only_the_readers_exception(name: str, data: st.DataObject) -> None:
    reader = READERS[name]
    samples = [
        sample if isinstance(sample, bytes) else json.dumps(sample).encode() for sample in reader.samples
    ]
    check(reader, data.draw(cut_and_joined(samples)))
