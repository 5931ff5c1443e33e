import json

import pytest
from tests.support.agent_check import card, check, document, names
from tests.support.hostile_server import CARD_PATH, HEALTH_PATH, as_json, redirect, serving
from yarl import URL

from lifesign.client import fetch_health
from lifesign.client.candidate_urls import CandidateUrl, parse_entered_url
from lifesign.client.health_answers import (
    CARD_SHARE,
    CheckRequest,
    assess_card,
    assess_document,
    may_get_token,
    with_document_at_root,
)
from lifesign.domain.health.document import HealthStatus
from lifesign.domain.observation.results import ResultClass
from lifesign.http_client.answer import Answer

AGENT = URL("https://agent.example/a")
REFUSED = Answer(url=AGENT, result=ResultClass.REFUSED, reason="no")
ASKED = CheckRequest(str(AGENT), parse_entered_url(str(AGENT)), 100.0, 10.0, "secret", None, identify=False)


def test_card_has_a_share_of_the_time() -> None:
    assert (ASKED.card_deadline_s, ASKED.deadline_s) == (100.0 + 10.0 * CARD_SHARE, 110.0)


@pytest.mark.parametrize("result", [ResultClass.REFUSED, ResultClass.GATED, ResultClass.NOT_AN_AGENT])
def test_failed_request_has_neither_card_nor_document(result: ResultClass) -> None:
    answer = Answer(url=AGENT, result=result, reason="no", body=json.dumps(document()).encode())
    card_answer = assess_card(answer)
    assert (card_answer.answer, card_answer.card) == (answer, None)
    health = assess_document(CandidateUrl(AGENT), answer)
    assert (health.answer, health.document) == (answer, None)


def test_body_decides_about_a_good_answer() -> None:
    def served(value: dict[str, object]) -> Answer:
        body = json.dumps(value).encode()
        return Answer(url=AGENT, result=ResultClass.OK, content_type="application/json", body=body)

    assert assess_card(served(card())).card is not None
    assert assess_card(served(document())).answer.result is ResultClass.NOT_AN_AGENT
    assert assess_document(CandidateUrl(AGENT), served(document())).document is not None
    other = assess_document(CandidateUrl(AGENT), served(card()))
    assert (other.answer.result, other.document) == (ResultClass.NOT_AN_AGENT, None)


@pytest.mark.parametrize(
    ("url", "is_root", "is_sent"),
    [
        ("https://agent.example/a/health", False, True),
        ("https://agent.example/a", False, True),
        ("https://agent.example/b/health", False, False),
        ("https://agent.example/ab", False, False),
        ("https://agent.example/health", True, False),
        ("https://agent.example:8443/a/health", False, False),
        ("http://agent.example/a/health", False, False),
        ("https://other.example/a/health", False, False),
    ],
)
def test_token_stays_with_the_given_agent(url: str, *, is_root: bool, is_sent: bool) -> None:
    assert may_get_token(ASKED, CandidateUrl(URL(url), is_root=is_root)) is is_sent


@pytest.mark.parametrize(
    ("path", "is_sent"),
    [
        ("/a/b.json", True),
        ("/a/b/health", True),
        ("/a/.well-known/agent-health", False),
        ("/.well-known/agent-health", False),
        ("/a/c/health", False),
    ],
)
def test_token_of_a_card_elsewhere_is_not_sent_to_its_folder(path: str, *, is_sent: bool) -> None:
    url = "https://agent.example/a/b.json"
    asked = CheckRequest(url, parse_entered_url(url), 100.0, 10.0, "secret", None, identify=False)
    assert may_get_token(asked, CandidateUrl(URL("https://agent.example" + path))) is is_sent


def test_document_at_the_root_is_noted_beside_the_agents_own_answer() -> None:
    own = assess_document(CandidateUrl(AGENT), REFUSED)
    noted = with_document_at_root(own)
    assert (noted.is_at_root, noted.answer.result, noted.document) == (True, ResultClass.REFUSED, None)
    assert noted.answer.reason.startswith("no; ")


async def test_an_invalid_document_lists_its_faults() -> None:
    broken = document() | {"health": {"status": "fine"}, "timestamp": "noon"}
    checked = await check({HEALTH_PATH: as_json(broken)})
    assert checked.document_result is ResultClass.INVALID_DOCUMENT
    assert {"/health/status", "/timestamp"} <= {finding.pointer for finding in checked.findings}
    assert checked.decision.status is HealthStatus.UNKNOWN


async def test_card_at_the_root_that_claims_a_path_gets_no_token_of_its_agent() -> None:
    async with serving({"/b/health": as_json(document())}) as server:
        link = f'<{server.url}/b/health>; rel="status"'
        server.replies[CARD_PATH] = as_json(card(url=server.url + "/a"), Link=link)
        checked = await fetch_health(server.url + "/a", detail_token="secret12")
    assert checked.document is not None
    assert "authorization" not in server.asked("/b/health")
    assert "token_not_sent" in names(checked)


@pytest.mark.parametrize(("moved", "is_followed"), [("/a/moved", True), ("/b/x", False)])
async def test_redirect_to_another_path_is_not_followed_with_a_token(
    moved: str, *, is_followed: bool
) -> None:
    async with serving({"/a" + HEALTH_PATH: redirect(moved), moved: as_json(document())}) as server:
        checked = await fetch_health(server.url + "/a", detail_token="secret12")
    assert (moved in server.paths) is is_followed
    assert (checked.document is not None) is is_followed


async def test_token_for_one_agent_is_not_sent_to_the_root_of_its_origin() -> None:
    async with serving({HEALTH_PATH: as_json(document())}) as server:
        await fetch_health(server.url + "/a", detail_token="secret12")
    assert server.asked("/a" + HEALTH_PATH)["authorization"] == "Bearer secret12"
    assert "authorization" not in server.asked(HEALTH_PATH)
