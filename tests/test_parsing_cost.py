"""No parser takes more than linear time for what strangers send, or for what is logged of it.

Process time is measured for five sizes of an input, each twice as large as the one before. Its exponent is 1
where time grows as the size does, and 2 where an input that is twice as long takes four times as long.
"""

import contextlib
import gc
import json
import logging
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from time import process_time
from types import MappingProxyType
from typing import Any

import pytest
from aiohttp.http_exceptions import HttpProcessingError
from starlette.requests import Request
from tests.domain.credentials.test_disguise import UNITS as ESCAPED_UNITS
from tests.support import long_inputs as inputs
from tests.support.definitions import definition_of
from tests.support.long_inputs import UNITS, repeated
from yarl import URL

import lifesign
from lifesign.client.candidate_urls import parse_entered_url
from lifesign.client.event_stream import EventStreamParser
from lifesign.dashboard.login_sessions import cookie_in
from lifesign.dashboard.safe_redirect import local_path
from lifesign.domain.a2a.agent_card import read_agent_card
from lifesign.domain.a2a.stream_outcome import read_event_stream
from lifesign.domain.activity.opencode_event import read_event
from lifesign.domain.credentials.secret import MAX_SECRET_CHARS, Scrubber
from lifesign.domain.files.workflow_file import read_workflow
from lifesign.domain.health.document_reader import read_document
from lifesign.domain.mcp.event_reader import ReplyReader
from lifesign.domain.net.allowed_addresses import vet_url, without_password, without_passwords
from lifesign.domain.net.public_url import is_own_host
from lifesign.domain.observation.message_answer import classify_answer
from lifesign.domain.parsing.bounded_json import parse_or_none
from lifesign.domain.parsing.json_limits import is_finite
from lifesign.domain.targets.opt_out_proof import is_proven
from lifesign.domain.targets.target import read_target
from lifesign.domain.text.safe_text import harmless
from lifesign.http_client.failures import classify_failure
from lifesign.http_client.headers import max_age_seconds, media_type, retry_after_seconds, status_links
from lifesign.http_client.redirects import resolve_url
from lifesign.prober.directories.catalog_links import agentmaps, linked_catalogs
from lifesign.prober.directories.document_order import Walk
from lifesign.prober.directories.format_choice import BUILT_IN, describe, format_of
from lifesign.prober.directories.format_parser import DirectoryPage, Document, Listed
from lifesign.prober.directories.target_collection import Gathered
from lifesign.prober.probe.robots_rules import may_fetch, read_robots
from lifesign.registry.request_handling.cursors import numbers_in
from lifesign.serving.log_lines import LogLine

pytestmark = pytest.mark.long

MAX_EXPONENT = 1.3
DOUBLINGS = 4
ENOUGH_S = 0.002
"""Minimum time of the smallest input, so that it is measurable."""
FIRST_SIZE = 500
QUICK_SIZE = 20_000
"""A reader faster than ENOUGH_S at this size is not quadratic: that would be 200,000,000 steps."""
NOW = datetime(2026, 1, 1, tzinfo=UTC)
TRIES = 4
"""Repetitions of a measurement that is too high: other processes share the machine's caches."""


def seconds(act: Callable[[Any], object], given: Any) -> float:
    """Return the lesser process time of two runs."""
    least = math.inf
    for _ in range(2):
        began_s = process_time()
        # Refused input was read too.
        with contextlib.suppress(Exception):
            act(given)
        least = min(least, process_time() - began_s)
    return least


def exponent(act: Callable[[Any], object], make: Callable[[int], Any]) -> float:
    """Return by which power of the size the time grows; 0 for what takes next to no time."""
    if seconds(act, make(QUICK_SIZE)) < ENOUGH_S:
        return 0.0
    size = FIRST_SIZE
    while (first_s := seconds(act, make(size))) < ENOUGH_S:
        size *= 2
    return math.log2(seconds(act, make(size << DOUBLINGS)) / first_s) / DOUBLINGS


def check(act: Callable[[Any], object], make: Callable[[int], Any]) -> None:
    """Let a function read inputs of growing size; say which input makes it slow."""
    gc.disable()
    try:
        found = [exponent(act, make)]
        while found[-1] > MAX_EXPONENT and len(found) < TRIES:
            found.append(exponent(act, make))
    finally:
        gc.enable()
    assert min(found) <= MAX_EXPONENT, f"{make(60)!r}: {found}"


# ── regular expressions ──

HEADS = ("", "http://", "[", '"', "{", "a", "intent:a", '{"jsonrpc":"2.0",')
TAILS = ("\x00", "")
METHODS = {"search", "match", "fullmatch", "sub", "subn", "finditer", "findall", "split"}


@dataclass(frozen=True)
class Pattern:
    """A compiled pattern of a module, and the methods by which it is used."""

    pattern: re.Pattern[Any]
    methods: frozenset[str]

    def use(self, text: str) -> None:
        given = text.encode("utf-8", "surrogatepass") if isinstance(self.pattern.pattern, bytes) else text
        for method in self.methods:
            found = getattr(self.pattern, method)
            if method in {"sub", "subn"}:
                found(given[:0], given)
            elif method == "finditer":
                list(found(given))
            else:
                found(given)


def patterns() -> dict[str, Pattern]:
    """Return all patterns that the modules of the package keep, by their names."""
    found: dict[str, Pattern] = {}
    for module in walk_packages(lifesign.__path__, "lifesign."):
        if ".migrations." in module.name or module.name.endswith("__main__"):
            continue
        loaded = import_module(module.name)
        source = Path(loaded.__file__ or "").read_text()
        for name, value in vars(loaded).items():
            held = value.values() if isinstance(value, dict | MappingProxyType) else [value]
            if not (compiled := [one for one in held if isinstance(one, re.Pattern)]):
                continue
            used = METHODS & set(re.findall(rf"\b{name}(?:\[[^\]]*\])?\.([a-z]+)\b", source))
            for number, one in enumerate(compiled):
                found[f"{module.name}.{name}{number or ''}"] = Pattern(one, frozenset(used or {"search"}))
    return found


PATTERNS = patterns()


def test_check_finds_the_regular_expressions_of_the_package() -> None:
    assert len(PATTERNS) >= 80
    assert "lifesign.serving.log_lines._KEY" in PATTERNS


@pytest.mark.parametrize("name", PATTERNS)
def test_a_regular_expression_takes_linear_time(name: str) -> None:
    for make in repeated(UNITS, HEADS, TAILS):
        check(PATTERNS[name].use, make)


# ── parsers ──


def log(text: str) -> None:
    record = logging.LogRecord("a", logging.INFO, "", 0, "%s", (text,), None)
    LogLine("console").format(record)
    LogLine("json").format(record)


def cookie(text: str) -> None:
    scope = {"type": "http", "headers": [(b"cookie", text.encode("latin-1"))]}
    cookie_in(Request(scope), "lifesign_session")


def failure(text: str) -> None:
    classify_failure(URL("http://a.example"), HttpProcessingError(code=400, message=text))


def directory(name: str, body: bytes, content_type: str = "") -> None:
    document = Document(body, content_type, "https://a.example/list")
    one = BUILT_IN[name]
    one.recognises(document)
    describe(document)
    format_of(document)
    walk, gathered = Walk(), Gathered()
    page = one.read(document)
    gathered.add(page.entries, document.url)
    walk.follow(document, page, 0)
    gathered.digest()


def follow_next_page(text: str) -> None:
    document = Document(b"", "", "https://a.example/x/y")
    Walk().follow(document, DirectoryPage(entries=(), next_page=text, nested=(text,)), 0)


def robots(body: bytes) -> None:
    rules = read_robots(200, body)
    assert rules is not None
    may_fetch(rules, "/" + "a" * 2_000)


def stream(body: bytes) -> None:
    parser = EventStreamParser()
    for begin in range(0, len(body), 50):
        parser.feed(body[begin : begin + 50])


def reply_in_pieces(body: bytes) -> None:
    reader = ReplyReader(1)
    for begin in range(0, len(body), 2):
        reader.feed(body[begin : begin + 2])


def answer(content_type: str, body: bytes) -> None:
    classify_answer(200, content_type, body, is_rpc=True)


def definition(text: str) -> None:
    definition_of(text)


PARSERS: dict[str, tuple[Callable[[Any], object], Sequence[Callable[[int], Any]]]] = {
    "a log line": (log, inputs.LOGGED),
    "passwords in a text": (without_passwords, inputs.LOGGED),
    "a password in a URL": (without_password, inputs.URLS),
    "a target": (read_target, inputs.URLS),
    "a vetted URL": (vet_url, inputs.URLS),
    "a given URL": (parse_entered_url, inputs.URLS),
    "a redirect": (partial(resolve_url, URL("https://a.example/b/c")), inputs.URLS),
    "an entry of a directory": (
        lambda text: Gathered().add([Listed(text, text)], "https://a/b"),
        inputs.URLS,
    ),
    "the next page of a directory": (follow_next_page, inputs.URLS),
    "a path to return to": (local_path, inputs.URLS),
    "harmless text": (harmless, tuple(repeated(("a", "\u200d", "é\u200d", "\u200e", "\ud800", "\x00")))),
    "a cursor": (lambda text: numbers_in(text, "a", 1), tuple(repeated(("a", "=", "-", "W", "\n")))),
    "Host": (lambda text: is_own_host(text, ()), inputs.URLS),
    "Cookie": (cookie, inputs.COOKIES),
    "Link": (lambda text: status_links([text]), inputs.FIELDS),
    "Content-Type": (lambda text: media_type({"Content-Type": text}), inputs.FIELDS),
    "Cache-Control": (lambda text: max_age_seconds([text]), inputs.FIELDS),
    "Retry-After": (lambda text: retry_after_seconds(text, NOW), inputs.FIELDS),
    "a failure of HTTP": (failure, inputs.HTTP_FAILURES),
    "a card": (read_agent_card, inputs.CARDS),
    "a health document": (read_document, inputs.HEALTH_DOCUMENTS),
    "JSON": (parse_or_none, inputs.JSON),
    "free JSON": (lambda body: is_finite(json.loads(body)), inputs.JSON),
    "an answer to a message": (partial(answer, "application/json"), inputs.JSON),
    "an answer in events": (partial(answer, "text/event-stream"), inputs.EVENTS),
    "an inspected stream": (read_event_stream, inputs.EVENTS),
    "an event stream": (stream, inputs.EVENTS),
    "a reply in events": (reply_in_pieces, inputs.EVENTS),
    "an event of a session": (lambda body: read_event(body.decode("utf-8", "replace")), inputs.JSON),
    "a robots.txt": (robots, inputs.ROBOTS),
    "catalogs of a robots.txt": (lambda body: agentmaps(body, "https://a/robots.txt"), inputs.ROBOTS),
    "catalogs of a page": (lambda body: linked_catalogs(body, "https://a/"), inputs.LINKING_PAGES),
    "a proof of an opt-out": (lambda body: is_proven("x" * 60, body), inputs.PROOFS),
    "a list in text": (partial(directory, "plain_list"), inputs.LISTS),
    "a list in CSV": (partial(directory, "plain_list", content_type="text/csv"), inputs.LISTS),
    "a list in JSON lines": (
        partial(directory, "plain_list", content_type="application/jsonl"),
        inputs.LISTS,
    ),
    "a list in JSON": (partial(directory, "plain_list"), inputs.JSON_LISTS),
    "an AI Catalog": (partial(directory, "ai_catalog"), inputs.AI_CATALOGS),
    "an API catalog": (partial(directory, "api_catalog"), inputs.API_CATALOGS),
    "an AGNTCY directory": (partial(directory, "agntcy"), inputs.AGNTCY_RECORDS),
    "an ANP page": (partial(directory, "anp"), inputs.ANP_PAGES),
    "a page of the MCP registry": (partial(directory, "mcp_registry"), inputs.MCP_PAGES),
    "a NANDA index": (partial(directory, "nanda"), inputs.NANDA_INDEXES),
    "a definition": (definition, inputs.YAML),
    "a workflow": (read_workflow, inputs.WORKFLOWS),
    "a text without secrets": (
        Scrubber(["canary-or-not", "canary of another credential"]).clean,
        inputs.as_bytes(repeated(unit.decode() for unit in ESCAPED_UNITS)),
    ),
}


@pytest.mark.parametrize("name", PARSERS)
def test_a_parser_takes_linear_time(name: str) -> None:
    act, makers = PARSERS[name]
    for make in makers:
        check(act, make)


@pytest.mark.parametrize("secret", ["a" * (MAX_SECRET_CHARS - 1) + "b", "ab" * (MAX_SECRET_CHARS // 2)])
@pytest.mark.parametrize("unit", ["%" + "a" * 65_535, "%61", "\\u0061b ", "%2561", "a"])
def test_a_long_repetitive_secret_costs_little_more_than_a_short_one(secret: str, unit: str) -> None:
    data = unit.encode() * (1_048_576 // len(unit))
    # A search that starts again at each byte takes thousands of times as long.
    assert seconds(Scrubber([secret]).clean, data) < 100 * seconds(Scrubber(["canary"]).clean, data)
