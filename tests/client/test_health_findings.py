import pytest
from tests.support.agent_check import card, check, document, names
from tests.support.hostile_server import CARD_PATH, HEALTH_PATH, answer, as_json, serving

from lifesign.domain.health.document import HealthStatus
from lifesign.domain.observation.results import ResultClass


async def test_refused_token_is_no_fault_of_the_agent() -> None:
    checked = await check({HEALTH_PATH: answer(401)}, detail_token="secret12")
    assert "token_refused" in names(checked)
    assert "health_is_gated" not in names(checked)


async def test_health_on_another_origin_is_a_finding_and_is_not_followed() -> None:
    async with serving({HEALTH_PATH: as_json(document())}) as elsewhere:
        link = f'<{elsewhere.url}{HEALTH_PATH}>; rel="status"'
        checked = await check({CARD_PATH: as_json(card(), Link=link)})
    assert elsewhere.paths == []
    assert checked.document_result is ResultClass.NOT_AN_AGENT
    assert "health_on_other_origin" in names(checked)


@pytest.mark.parametrize(
    ("agent_id", "is_elsewhere"),
    [
        ("https://other.example/agents/weather", True),
        ("http://127.9.0.1:21080", True),
        ("https://127.0.0.1:1/another-port", False),
        ("weather", False),
        ("urn:agent:weather", False),
        ("https://[", False),
    ],
)
async def test_document_with_another_host_has_a_finding_and_still_decides(
    agent_id: str, *, is_elsewhere: bool
) -> None:
    checked = await check({CARD_PATH: as_json(card()), HEALTH_PATH: as_json(document(agent_id=agent_id))})
    assert ("agent_id_elsewhere" in names(checked)) is is_elsewhere
    assert checked.decision.status is HealthStatus.HEALTHY


async def test_plain_http_is_a_finding() -> None:
    checked = await check({HEALTH_PATH: as_json(document())})
    assert ("not_https", "draft 4.1") in {(finding.name, finding.section) for finding in checked.findings}
    assert "not_https" not in names(await check({}))
