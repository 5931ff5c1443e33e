import contextlib
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.registry_server import KEYS, RegistryServer
from tests.support.scripted_registry import KEY, OWN_KEY, ScriptedRegistry, refusal, scripted_registry
from tests.support.virtual_loop import in_virtual_time

from lifesign.agent.credentials import AgentKeys
from lifesign.agent.profile import AgentProfile
from lifesign.agent.registration import MAX_LEAVE_TRIES, Load, RegistrySession
from lifesign.client.registry_errors import InvalidAnswer, NotPermitted
from lifesign.domain.access.permissions import Role
from lifesign.domain.models.agents import MAX_TASKS
from lifesign.errors import InvalidValue
from lifesign.filesystem.private_file import write_private

NOT_PERMITTED = refusal(403, "not_allowed", "this coordinator key may not send heartbeats")


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


@pytest.mark.parametrize("key", [KEYS[Role.COORDINATOR], KEYS[Role.ENROLL]], ids=["coordinator", "enroll"])
async def test_key_without_permission_for_heartbeats_replaces_no_agent(
    registry: RegistryServer, tmp_path: Path, key: str
) -> None:
    async def check_and_register(place: RegistrySession) -> None:
        await place.check_key()
        await place.register(supersede=True)

    def session(given: str, key_file: Path | None) -> RegistrySession:
        keys = AgentKeys(key=given, key_file=key_file, environment={})
        return RegistrySession(AgentProfile(agent_id="a"), keys, registry.url)

    running = session(KEYS[Role.ENROLL], tmp_path / "a.key")
    await check_and_register(running)
    other = session(key, tmp_path / "lost.key")
    with pytest.raises(NotPermitted) as refused:
        await check_and_register(other)
    assert "lifesign keys create --role agent --agent-id a " in other.hint(refused.value)
    record = await running.client.agents.get("a")
    assert (record.incarnation, record.status) == (1, "active")
    # The agent's own key may replace the incarnation.
    own = session((tmp_path / "a.key").read_text().strip(), None)
    await own.check_key()
    assert (await own.register(supersede=True)).incarnation == 2
    for place in (running, other, own):
        await place.close()


async def test_agent_that_could_not_store_its_own_key_is_not_registered(
    registry: RegistryServer, tmp_path: Path
) -> None:
    file = tmp_path / "absent" / "a.key"

    def session(key: str, **settings: bool) -> RegistrySession:
        keys = AgentKeys(key=key, key_file=file, environment={})
        return RegistrySession(AgentProfile(agent_id="a"), keys, registry.url, **settings)

    enrolled = session(KEYS[Role.ENROLL])
    with pytest.raises(InvalidValue, match="key_file"):
        await enrolled.check_key()
    # These need no stored key for the next start.
    for other in (session(KEYS[Role.ADMIN]), session(KEYS[Role.ENROLL], has_fixed_id=False)):
        await other.check_key()
        await other.close()
    file.parent.mkdir()
    await enrolled.check_key()
    await enrolled.register(supersede=False)
    assert file.exists()
    await enrolled.close()


@in_virtual_time
async def test_registration_without_the_own_key_is_an_error_if_heartbeats_are_refused() -> None:
    async with placed() as (place, registry):
        # The registry has issued a key for this agent already.
        registry.incarnation = 1
        registry.answers("beat", NOT_PERMITTED)
        await place.check_key()
        with pytest.raises(NotPermitted):
            await place.register(supersede=True)
        assert place.incarnation is None
        # A failure says nothing about the key.
        registry.answers("beat", refusal(429, "too_many_requests"))
        assert (await place.register(supersede=True)).incarnation == place.incarnation == 3


@in_virtual_time
async def test_rotated_key_is_taken_from_the_key_file_once_the_former_one_has_expired() -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with scripted_registry() as registry:
            file = f"{directory}/a.key"
            keys = AgentKeys(key=KEY, key_file=file, environment={})
            place = RegistrySession(AgentProfile(agent_id="a"), keys, registry.url)
            await place.register(supersede=True)
            write_private(Path(file), "ahk_rotated")
            registry.answers("beat", refusal(401, "unknown_key"))
            for _ in range(2):
                await place.send_heartbeat(Load(), is_draining=False, client_s=0.0)
            sent = [asked.headers["X-API-Key"] for asked in registry.beats()]
            assert sent == [OWN_KEY, "ahk_rotated", "ahk_rotated"]
            await place.close()


@pytest.mark.parametrize("character", ["x", "ä", '"', "\U0001f916"])
async def test_heartbeat_lists_no_more_task_ids_than_the_registry_accepts(
    registry: RegistryServer, character: str
) -> None:
    keys = AgentKeys(key=KEYS[Role.ADMIN], environment={})
    place = RegistrySession(AgentProfile(agent_id="a"), keys, registry.url)
    await place.register(supersede=True)
    tasks = tuple(f"{number:04}{252 * character}" for number in range(MAX_TASKS + 1))
    await place.send_heartbeat(Load(len(tasks), tasks), is_draining=False, client_s=0.0)
    listed = (await place.client.agents.get("a")).reported.tasks_in_progress
    await place.close()
    assert tuple(listed) == tasks[: len(listed)]
    assert len(listed) == MAX_TASKS if character == "x" else 200 < len(listed) < MAX_TASKS
