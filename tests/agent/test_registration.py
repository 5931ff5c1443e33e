import contextlib
from collections.abc import AsyncIterator

import pytest
from tests.support.scripted_registry import KEY, ScriptedRegistry, refusal, scripted_registry
from tests.support.virtual_loop import in_virtual_time

from lifesign.agent.credentials import AgentKeys
from lifesign.agent.profile import AgentProfile
from lifesign.agent.registration import MAX_LEAVE_TRIES, RegistrySession
from lifesign.client.registry_errors import InvalidAnswer


@contextlib.asynccontextmanager
async def placed() -> AsyncIterator[tuple[RegistrySession, ScriptedRegistry]]:
    async with scripted_registry() as registry:
        keys = AgentKeys(key=KEY, environment={})
        place = RegistrySession(AgentProfile(agent_id="a"), keys, registry.url)
        try:
            yield place, registry
        finally:
            await place.close()


@in_virtual_time
async def test_leaving_process_ends_its_own_incarnation() -> None:
    async with placed() as (place, registry):
        await place.register(supersede=True)
        await place.leave()
        assert (registry.status, place.incarnation) == ("deregistered", None)


@in_virtual_time
async def test_leaving_process_does_not_end_the_incarnation_of_another() -> None:
    async with placed() as (place, registry):
        await place.register(supersede=True)
        registry.incarnation += 1
        await place.leave()
        assert registry.status == "active"
        assert "DELETE" not in registry.functions()


@in_virtual_time
async def test_record_changed_meanwhile_is_read_again() -> None:
    async with placed() as (place, registry):
        await place.register(supersede=True)
        registry.answers("DELETE", refusal(412, "stale_version"))
        await place.leave()
        assert registry.status == "deregistered"
        await place.register(supersede=True)
        registry.answers("DELETE", *[refusal(412, "stale_version")] * 100)
        await place.leave()
        assert registry.functions().count("DELETE") == 2 + MAX_LEAVE_TRIES


@pytest.mark.parametrize("answer", [(409, "no_transition"), (410, "agent_gone"), (404, "agent_not_found")])
def test_leaving_an_already_deregistered_agent_succeeds(answer: tuple[int, str]) -> None:
    @in_virtual_time
    async def test() -> None:
        async with placed() as (place, registry):
            await place.register(supersede=True)
            registry.answers("DELETE", refusal(*answer))
            await place.leave()
            assert place.incarnation is None

    test()


@in_virtual_time
async def test_leaving_without_registration_sends_no_request() -> None:
    async with placed() as (place, registry):
        await place.leave()
        assert registry.asked == []


@in_virtual_time
async def test_registration_reply_for_another_agent_is_refused() -> None:
    async with placed() as (place, registry):
        await place.register(supersede=True)
        other = {**registry.record(), "agent_id": "b"}
        registry.answers("POST", (201, other))
        with pytest.raises(InvalidAnswer, match="instead of a"):
            await place.register(supersede=True)
