import pytest
from tests.support.registry_api import RegistryApi

from lifesign.domain.access.permissions import Extent, Role
from lifesign.registry.events.stream_events import STREAM_PATH
from lifesign.registry.openapi.document import _PARAMETER_IN_PATH, _PATH_PARAMETERS
from lifesign.registry.openapi.endpoints import EXTRA_ENDPOINTS, EndpointDoc, described
from lifesign.registry.operation_table import OPERATIONS

WAYS = [way for way in (*map(described, OPERATIONS), *EXTRA_ENDPOINTS) if way.needs_key]
AGENT = "poet"
HEADERS = {"If-Match": "*", "X-Fencing-Token": "1"}


def path_in(way: EndpointDoc) -> str:
    values = {name: member.get("example", "x") for name, member in _PATH_PARAMETERS.items()}
    values["agent_id"] = AGENT
    # An invalid query ends the stream.
    query = "?after=x" if way.path == STREAM_PATH else ""
    return _PARAMETER_IN_PATH.sub(lambda found: str(values[found[1]]), way.path) + query


def body_of(way: EndpointDoc, role: Role) -> dict[str, object] | None:
    if way.example is None:
        return None
    # The key of an agent may register it again, an enroll key only a new one.
    own: dict[str, object] = {"agent_id": "new" if role is Role.ENROLL else AGENT, "wait_seconds": 0}
    return {**way.example, **{name: value for name, value in own.items() if name in way.example}}


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
async def test_server_admits_exactly_the_documented_roles(api: RegistryApi, way: EndpointDoc) -> None:
    await api.register(AGENT)
    admitted = set()
    for role in Role:
        key = await api.add_agent_key(AGENT) if role is Role.AGENT else role
        answer = await api.ask(way.method, path_in(way), body_of(way, role), key=key, headers=HEADERS)
        if answer.status != 403:
            admitted.add(role.value)
    own = {role for role, extent in way.roles.items() if extent == Extent.OWN}
    # Some paths name a record that is not the agent's own.
    assert set(way.roles) - own <= admitted <= set(way.roles)
