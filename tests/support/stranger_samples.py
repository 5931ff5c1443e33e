"""Samples of what strangers send to readers, one of each form at least."""

from typing import Any

from tests.support.agent_check import document as health_document
from tests.support.cards import CARD_01, CARD_02, CARD_03, CARD_10

CARDS = [CARD_01, CARD_02, CARD_03, CARD_10]
CATALOG = {
    "specVersion": "1.0",
    "entries": [
        {
            "identifier": "urn:a",
            "displayName": "A",
            "mediaType": "application/a2a-agent-card+json",
            "data": CARD_10,
        },
        {"identifier": "urn:b", "type": "application/mcp-server+json", "url": "https://b.example/mcp"},
        {
            "identifier": "urn:c",
            "mediaType": "application/ai-catalog+json",
            "url": "https://c.example/catalog.json",
        },
        {
            "identifier": "urn:d",
            "mediaType": "application/ai-catalog+json",
            "data": {
                "specVersion": "1.0",
                "entries": [{"identifier": "urn:e", "mediaType": "a", "url": "https://e/"}],
            },
        },
    ],
}
RECORD = {
    "name": "R",
    "schema_version": "1.0.0",
    "skills": [],
    "modules": [
        {"name": "integration/a2a", "data": {"card_data": CARD_03}},
        {"name": "integration/a2a", "data": {"card_url": "https://r.example/card.json"}},
        {
            "name": "integration/mcp",
            "data": {"connections": [{"type": "sse", "url": "https://r.example/mcp"}]},
        },
    ],
    "locators": [{"type": "url", "url": "https://r.example/"}],
}
DIRECTORIES: dict[str, list[Any]] = {
    "a2a_registry": [
        {
            "agents": [{**CARD_03, "wellKnownURI": "https://a.example/"}, {"url": "b.example", "id": ""}],
            "total": 219, "count": 2, "limit": 100, "offset": 0,
        },
        {"wellKnownURIs": ["https://a.example/card.json", "b.example"]},
    ],
    "lifesign": [
        {
            "agents": [
                {"agent_id": "a", "status": "active", "name": "A", "card_url": "https://a.example/card.json"},
                {"agent_id": "b", "status": "dead", "endpoint": "https://b.example/"},
            ],
            "total": 2, "cursor": "abc",
        },
    ],
    "agntcy": [
        RECORD,
        [RECORD, RECORD],
        {"results": [RECORD, *CATALOG["entries"]], "next_page_token": "abc", "total_count": 9},
        {"records": [{"mediaType": "application/oasf+json", "data": RECORD}], "nextPageToken": ""},
    ],
    "ai_catalog": [CATALOG, {"items": CATALOG["entries"], "total": 4, "pageToken": "abc"}],
    "anp": [
        {
            "@type": "CollectionPage",
            "items": [
                {"@type": "ad:AgentDescription", "name": "A", "@id": "https://a.example/ad.json",
                 "ad:interfaces": [{"protocol": "A2A", "url": "https://a.example/"}]},
            ],
            "next": "https://a.example/2",
        },
        {"@type": "ad:AgentDescription", "interfaces": [{"protocol": "A2A", "url": "/a"}]},
    ],
    "api_catalog": [
        {
            "linkset": [
                {
                    "anchor": "https://a.example/api",
                    "item": [{"href": "https://a.example/x", "title": "X"}],
                    "service-desc": [{"href": "/card.json", "type": "application/a2a-agent-card+json"}],
                    "status": [{"href": "https://a.example/.well-known/agent-health"}],
                    "api-catalog": [{"href": "https://b.example/.well-known/api-catalog"}],
                    "agent-card": [{"href": "https://a.example/card.json"}],
                },
            ],
        },
    ],
    "mcp_registry": [
        {
            "servers": [
                {
                    "server": {"name": "s", "remotes": [{"type": "sse", "url": "https://s.example/{t}"}]},
                    "_meta": {"io.modelcontextprotocol.registry/official": {"status": "active"}},
                },
            ],
            "metadata": {"nextCursor": "abc", "count": 1, "total": 5},
        },
        [{"id": "s", "version_detail": {}, "packages": [], "remotes": [{"url": "https://s.example/"}]}],
    ],
    "nanda": [{"agentm1": "https://a.example/", "agentm2": "https://b.example:6000", "agent_status": {}}],
    "plain_list": [
        ["https://a.example/", "b.example", {"name": "C", "url": "https://c.example/"}],
        {"targets": [{"title": "A", "agentCardUrl": "https://a.example/c.json"}], "total": 1, "next": None},
    ],
}  # fmt: skip
TEXT_LISTS = [
    b"# agents\nhttps://a.example/\nb.example # two\n\nhttp://127.0.0.1:8000/x?y=z\nuser:pass@c.example\n",
    b'name,url\n"A, or B",https://a.example/\nB;b.example\n"unclosed\n',
    b"title\tdomain\nA\ta.example\nB\tb.example\n",
    b'"https://a.example/"\n{"name": "B", "url": "https://b.example/"}\n[1]\n',
    "name;endpoint\nÄ;https://ä.example/\n".encode("utf-16"),
    b"\xef\xbb\xbfhttps://a.example\r\nhttps://b.example\r\n",
    b"<!doctype html><title>503</title>",
    b"\x1f\x8b\x08\x00",
]
ANSWERS = [
    {
        "jsonrpc": "2.0",
        "id": 1,
        "result": {"kind": "task", "status": {"state": "completed"}, "artifacts": []},
    },
    {"jsonrpc": "2.0", "id": 1, "result": {"task": {"status": {"state": "TASK_STATE_FAILED"}}}},
    {"jsonrpc": "2.0", "id": 1, "error": {"code": -32603, "message": "no", "data": {}}},
    {"error": {"code": 404, "status": "NOT_FOUND", "message": "no"}},
    {"statusUpdate": {"status": {"state": "TASK_STATE_WORKING"}}},
]
STREAM = (
    b'event: error\ndata: {"error": {"code": -32603}}\r\n\r\n: ping\n\ndata: {"jsonrpc": "2.0",\n'
    b'data: "result": {"status": {"state": "failed"}}}\n\nid: 3\rretry: 100\r\r\xef\xbb\xbfdata'
)
EVENTS = [
    {
        "type": "session.error",
        "properties": {"sessionID": "ses_1", "error": {"name": "E", "data": {"message": "m"}}},
    },
    {
        "directory": "/",
        "payload": {"type": "session.status", "properties": {"sessionID": "s", "status": {"type": "idle"}}},
    },
    {
        "type": "message.part.updated",
        "data": {
            "part": {"sessionID": "s", "type": "tool", "state": {"status": "completed"}},
            "info": {"id": "s"},
        },
    },
]
HEALTH = [
    health_document(),
    health_document(
        calibration={"window_seconds": 3600, "sample_count": 10, "error_ratio": 0.5, "p50_latency_ms": 1},
        uptime_seconds=3, last_healthy_at="2026-01-01T00:00:00Z", trend="stable",
        extensions={"org.example.x": {"a": 1}},
    ),
]  # fmt: skip
RECORD_OF_AGENT = {
    "agent_id": "a", "role_id": "r", "name": "A", "status": "active", "capabilities": ["x"],
    "metadata": {"a": 1},
}  # fmt: skip
ROBOTS = (
    b"User-agent: *\nDisallow: /*.json$\nAllow: /%2e%2E/a\n\nuser-agent: lifesign-prober\rDisallow:\r\n"
    b"Disallow: /a*b*c$ # no\nSitemap: x\n"
)
DEFINITION = """\
name: demo
contact: mailto:a@b.example
targets: [https://a.example, {b: c}]
directories:
  - {url: "https://d.example/list", format: auto}
cadence: {interval_seconds: 30, back_off: 1e3}
networks: {allow: [10.0.0.0/8]}
limits: {per_host: 0x10, other: 1_000, time: 1:30:59.5, oct: 0o17, date: 2026-01-01, inf: .inf}
opt_out: {hosts: [.example.org]}
"""
WORKFLOW = """\
intent: {title: x}
agents:
  helper:
    role_id: h
    capabilities: [a, b]
    heartbeat: {enabled: true, interval_seconds: 30}
    pool: {min_instances: 1, max_instances: 3}
    metadata: {a: {b: [1, 2.5, ~]}}
    endpoint: https://a.example
"""
