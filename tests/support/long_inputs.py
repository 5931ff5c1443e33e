"""Inputs of any size that make a careless parser slow: one piece, repeated between a head and a tail."""

import itertools
import json
from collections.abc import Callable, Iterable
from typing import Any

from tests.support.cards import CARD_10

Text = Callable[[int], str]
"""Makes a text of about so many characters."""
Body = Callable[[int], bytes]

UNITS = (
    " ", "\t", "\n", "a", "1", "é", "\ud800", ".", "-", "/", ":", "@", "#", "?", "%", "<", "{", "[", "]", "(",
    '"', "'", "\\", "`", "*", ",", ";", "=", "|", "://", "://a:", "://a@", "a:", "a@", "a.", "1.", ":1", "a-",
    "/.", "a/", ", ", ",<", "<a", "bearer ", "ahk_", "ahk_a ", "key:", "a ", "\r\n", "* ", "\n* ", '"a',
    '"id":', ',"id":1', "}", "} ", "=?base64?", "?=", "v1=", "User-agent:", "allow :", " (place ", "b'", "' ",
    "x\u200d", "localhost.", "127.", "xn--", "0x",
)  # fmt: skip
"""Repeated parts of patterns, and their surroundings."""


def repeated(units: Iterable[str], heads: Iterable[str] = ("",), tails: Iterable[str] = ("",)) -> list[Text]:
    """Return a maker of texts for each head, unit and tail."""

    def maker(head: str, unit: str, tail: str) -> Text:
        return lambda n: head + unit * (n // len(unit)) + tail

    return [maker(*pieces) for pieces in itertools.product(heads, units, tails)]


def as_bytes(makers: Iterable[Text]) -> list[Body]:
    """Return makers of the same in UTF-8."""

    def maker(make: Text) -> Body:
        return lambda n: make(n).encode("utf-8", "surrogatepass")

    return [maker(make) for make in makers]


def as_json(make: Callable[[int], Any]) -> Body:
    """Return a maker of JSON."""
    return lambda n: json.dumps(make(n)).encode()


def listed(unit: Any, key: str | None = None, **around: Any) -> Body:
    """Return a maker of lists of one value, under a member of an object if it has a name."""

    def make(n: int) -> Any:
        values = [unit] * max(1, n // len(json.dumps(unit)))
        return values if key is None else {key: values, **around}

    return as_json(make)


def members(names: Iterable[str], units: Iterable[str], value: dict[str, Any]) -> list[Body]:
    """Return makers of objects in which one member is a long text."""

    def maker(name: str, unit: str) -> Body:
        return as_json(lambda n: {**value, name: unit * (n // len(unit))})

    return [maker(name, unit) for name, unit in itertools.product(names, units)]


URLS = tuple(repeated(UNITS, ("", "http://", "https://a.example/", "//"), ("", "@", " ")))
LOGGED = (
    *URLS,
    *repeated(UNITS, ("@ ", "a@b://")),
    *repeated(("ahk_", "bearer ", "bearer", "a\n", "\x1b[", "é")),
)
COOKIES = tuple(
    repeated(("\\", '\\"', "\\1", ";", "=", " ", "a=b;", '"'), ("", 'a="', "lifesign_session=", '=";a="'))
)
JSON_UNITS = (
    "[",
    "{",
    '{"a":',
    '"',
    "\\",
    '"\\u',
    "1",
    "-",
    "1e",
    "0.",
    "[1,",
    '{"a":1,',
    " ",
    "nul",
    "\n",
    ",",
)
JSON = (
    *as_bytes(repeated(JSON_UNITS)),
    *as_bytes(repeated(("[", '{"a":[', "1", '"\\ud800', "a"), ('{"a":', "["))),
    as_json(lambda n: {str(number): number for number in range(n // 10)}),
    as_json(lambda n: [{}] * (n // 4)),
    as_json(lambda n: ["\ud800" * (n // 6)]),
    lambda n: ("{" + ",".join(['"a":1'] * (n // 6)) + "}").encode(),
)
EVENT_LINES = (
    "\n", "\r", "\r\n", "data:\n", "data: {}\n\n", ": a\n", "event: a\n", "id: 1\n", "a", "data: [", ":",
    "data",
)  # fmt: skip
EVENTS = tuple(as_bytes(repeated(EVENT_LINES)))
LINES = (
    "\n", "a.example\n", "#\n", " #", ",", '"', '""', '"\n', "a,b\n", ";\n", "\t", "a", "\r", "\ud800\n", "{",
    "[1]\n", "é\n", "http://[::1\n", "http://a:b@c\n", "x@y@\n", "1.\n", ".", "{{a}}\n", "<a", "\x00",
)  # fmt: skip
LISTS = tuple(
    as_bytes(
        repeated(LINES, ("", "https://a.example\n", "name,url\n", '{"url": "https://a.example"}\n', '"'))
    )
)
YAML_UNITS = (
    "a: 1\n", "1:", ":1", "- ", "-\n", "[", "{", "'", '"', "? ", ": ", "a: b: ", "&a ", "*a ", "!a ", "#",
    " ", "\n", "\t", "1", "_1", "1_", ".", "1e", "|\n", ">\n", "  a\n", "\\", "a ", "%a\n", "---\n",
    "2026-01-01 ", "a,", "[],", "{},", "~,",
)  # fmt: skip
YAML = tuple(
    repeated(YAML_UNITS, ("", "a: ", "agents: ", "a: [", "a: 1", "a: 0x", "a: |\n  "), ("", "\nb: 1", "]"))
)
WORKFLOWS: tuple[Text, ...] = (
    *YAML,
    lambda n: "agents:\n" + "".join(f"  a{number}: {{}}\n" for number in range(min(n // 12, 999))),
    lambda n: "agents: {a: {capabilities: [" + "1," * (n // 2) + "]}}",
    lambda n: "agents: {a: {metadata: {" + "".join(f"a{number}: 1," for number in range(n // 8)) + "}}}",
)
FIELD_UNITS = (
    " ", ",", ";", "=", "<", ">", "a", "1", '"', "<a>", "<a>,", "<a>;", ";rel=status", "max-age=",
    "max-age=1,", ", ", "(", ":", "-1", "Mon, ", ';a="', ";a*0=b",
)  # fmt: skip
FIELDS = tuple(repeated(FIELD_UNITS, ("", "<a>;", "Mon, 01 Jan 2020 ", "max-age=", "text/html;")))
HTTP_FAILURES = tuple(
    repeated((" ", "\n", "b'", "'", "'\n", "b'a'\n", "\n b'"), ("", "Bad status line\n", "b'"))
)
WITHOUT_INTERFACES = {key: value for key, value in CARD_10.items() if key != "supportedInterfaces"}
CARDS = (
    *JSON,
    *members(
        ("url", "name", "protocolVersion", "health"),
        ("a", "a.", "1.", ":", "@", "/", "\x00", "\u202e", "://", " "),
        WITHOUT_INTERFACES,
    ),
    listed({}, "skills", **{key: value for key, value in CARD_10.items() if key != "skills"}),
    listed({"url": "http://a"}, "supportedInterfaces", **WITHOUT_INTERFACES),
    as_json(lambda n: {**CARD_10, "capabilities": {"extensions": [{"uri": "a"}] * (n // 14)}}),
    as_json(lambda n: {**CARD_10, "securitySchemes": {str(number): 1 for number in range(n // 12)}}),
)
HEALTH_DOCUMENTS = (
    *JSON,
    *members(
        ("timestamp", "schema_version", "agent_id"), ("1", "0.", "-", "T", "1.1.1-", "a", ".a", "-a", "é"), {}
    ),
    as_json(lambda n: {"extensions": {f"org.example.x{number}": None for number in range(n // 30)}}),
    as_json(lambda n: {"extensions": {f"\ud800{number}": 1 for number in range(n // 20)}}),
)
RULES = (
    "Disallow: /*a*a*a*b\n", "Disallow: /*" + "a" * 60 + "b\n", "Disallow: /" + "*a" * 500 + "$\n", "a", "*",
    "Allow: /%41\n", "User-agent: a\n", "allow:" + " " * 50, "allow :", " ", "\t", "\r", "%", "#\n",
)  # fmt: skip
ROBOTS = tuple(as_bytes(repeated(RULES, ("", "User-agent: *\n", "User-agent: *\nDisallow: /"))))
PROOFS = tuple(as_bytes(repeated(("\n", "a\n", "#", "x", "\r"))))
JSON_LISTS = (
    *JSON,
    listed("https://a.example/"),
    listed("http://a:b@c"),
    listed("{" * 100),
    listed({"url": "x"}),
    listed({"name": "{{"}),
    listed("https://\u00fc.example/", "agents"),
    listed({}, "agents", links=1),
    as_json(lambda n: [f"https://a{number}.example/" for number in range(n // 24)]),
    as_json(lambda n: [f"https://a{number}.\u00fc.example/" for number in range(n // 24)]),
)
_CATALOG = {"identifier": "a", "type": "application/ai-catalog+json"}
_CARD_ENTRY = {"identifier": "a", "type": "application/a2a-agent-card+json", "data": CARD_10}
AI_CATALOGS = (
    listed({**_CATALOG, "url": "b"}, "entries", specVersion="1"),
    listed(_CARD_ENTRY, "entries", specVersion="1"),
    as_json(
        lambda n: {
            "specVersion": "1",
            "entries": [{**_CATALOG, "url": f"/{i}"} for i in range(min(n // 70, 999))],
        }
    ),
)
API_CATALOGS = (
    listed({"anchor": "https://a", "item": [{"href": "https://b"}]}, "linkset"),
    as_json(
        lambda n: {
            "linkset": [
                {"anchor": f"https://a{i}", "item": [{"href": f"https://b{i}"}]} for i in range(n // 50)
            ]
        }
    ),
)
LINKING_PAGES = as_bytes(
    repeated(
        (
            "a",
            "<",
            "<!",
            "<![",
            "<!--",
            "-->",
            "<link ",
            "<link rel",
            "<link rel=",
            '<link rel="',
            "<link rel='",
            "rel ",
            'rel="',
            "rel='",
        ),
        ("", "<link ", '<link rel="ard" ', '<link href="/x" rel="'),
        ("", ">", '">'),
    )
)
AGNTCY_RECORDS = (
    listed(
        {"name": "x", "schema_version": "1", "modules": [{"name": "a2a", "data": {"card_url": "https://a/"}}]}
    ),
    as_json(
        lambda n: {"name": "x", "schema_version": "1", "modules": [{"name": "a2a", "data": {}}] * (n // 26)}
    ),
)
ANP_PAGES = (
    listed({"@type": "AgentDescription", "interfaces": [{"protocol": "A2A", "url": "https://a/"}]}, "items"),
)
MCP_PAGES = (listed({"server": {"name": "a", "remotes": [{"url": "https://a/"}]}}, "servers", metadata={}),)
NANDA_INDEXES = (
    as_json(lambda n: {f"a{number}": f"https://a{number}.example/" for number in range(n // 36)}),
)
