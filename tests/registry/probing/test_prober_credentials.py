"""Credentials that one prober has and another one lacks."""

from datetime import datetime
from typing import Any

import pytest
from tests.support.databases import WoundClock
from tests.support.directory_api import SHARDS as PATH
from tests.support.metrics import Scraped
from tests.support.registry_api import RegistryApi

from lifesign.domain.access.permissions import Role
from lifesign.domain.credentials.missing_credentials import GONE_SECONDS, MAX_MISSING
from lifesign.domain.credentials.request_scope import MAX_CREDENTIALS
from lifesign.registry.probing.prober_credentials import MAX_SHOWN

ACME = {"name": "acme", "origin": "https://agents.acme.example", "path": "/billing"}
LAB = {"name": "lab", "origin": "https://lab.example", "path": "/"}
HOLDER = "key:key_prober_"


async def missing(
    api: RegistryApi, worker: str, *credentials: dict[str, Any], key: Role = Role.PROBER
) -> list[dict[str, Any]]:
    """Claim as a worker with these credentials, and return the missing ones."""
    found: list[dict[str, Any]] = (await claim(api, worker, *credentials, key=key))["missing_credentials"]
    return found


async def claim(api: RegistryApi, worker: str, *credentials: dict[str, Any], key: Role) -> dict[str, Any]:
    body = {"worker": worker, "held": {}, "credentials": credentials}
    answer = await api.ask("POST", f"{PATH}/claim", body, key=key)
    assert answer.status == 200, answer.body
    grant: dict[str, Any] = answer.json()
    return grant


async def is_refusal_unmeasured(api: RegistryApi, **state: object) -> bool:
    """Claim as a prober with another key, and return whether a refusal of the credential is not measured."""
    grant = await claim(api, "other", ACME | state, key=Role.ADMIN)
    return bool(grant["missing_credentials"] or grant["working_credentials"])


async def leave(api: RegistryApi, worker: str) -> None:
    assert (await api.ask("DELETE", f"{PATH}?worker={worker}", key=Role.PROBER)).status == 204


async def shown(api: RegistryApi) -> list[dict[str, Any]]:
    record: dict[str, Any] = (await api.ask("GET", "/api/v1/monitor", key=Role.READER)).json()
    return list(record["missing_credentials"])


@pytest.mark.both_databases
async def test_claim_lists_credentials_that_only_other_probers_have(api: RegistryApi) -> None:
    assert await missing(api, "a", ACME, LAB) == []
    lacks_acme = ACME | {
        "holder": f"{HOLDER}/b",
        "held_by": f"{HOLDER}/a",
        "target_origins": [ACME["origin"]],
    }
    assert await missing(api, "b", LAB) == [lacks_acme]
    assert await shown(api) == [lacks_acme]
    assert await missing(api, "a", ACME, LAB) == []


async def test_claim_lists_card_origins_that_only_another_prober_has(api: RegistryApi) -> None:
    cards = "https://cards.example"
    assert await missing(api, "a", ACME | {"card_origins": [cards]}) == []
    (lacking,) = await missing(api, "b", ACME)
    assert lacking["target_origins"] == [cards]
    assert await missing(api, "b", ACME | {"card_origins": [cards]}) == []


async def test_credential_is_no_longer_missing_after_configuration_or_end_of_its_prober(
    api: RegistryApi, clock: WoundClock
) -> None:
    await missing(api, "a", ACME)
    assert len(await missing(api, "b")) == 1
    assert await missing(api, "b", ACME | {"name": "other-name", "path": "/billing/"}) == []
    # The claim of the other prober expires. It may restart.
    for seconds, count in ((61, 1), (GONE_SECONDS - 2, 1), (2, 0)):
        clock.advance(seconds)
        assert len(await missing(api, "b")) == count
        assert len(await shown(api)) == count


async def test_two_probers_that_each_lack_a_credential_of_the_other_are_both_listed(api: RegistryApi) -> None:
    await missing(api, "a", ACME)
    await missing(api, "b", LAB)
    assert [(each["holder"][-1], each["name"], each["held_by"][-1]) for each in await shown(api)] == [
        ("a", "lab", "b"), ("b", "acme", "a"),
    ]  # fmt: skip


async def test_number_of_credential_places_of_a_claim_is_bounded(api: RegistryApi) -> None:
    async def status(worker: str, count: int) -> int:
        places = [ACME | {"path": f"/{worker}/{number}"} for number in range(count)]
        body = {"worker": worker, "held": {}, "credentials": places}
        return (await api.ask("POST", f"{PATH}/claim", body, key=Role.PROBER)).status

    assert await status("a", MAX_CREDENTIALS + 1) == 422
    workers = MAX_MISSING // MAX_CREDENTIALS + 2
    for number in range(workers):
        assert await status(f"w{number}", MAX_CREDENTIALS) == 200
    assert len(await missing(api, "b")) == MAX_MISSING
    assert len(await shown(api)) == MAX_SHOWN


@pytest.mark.parametrize("origin", ["http://[", "http://]", "http://[::1", "http://a:99999", "https://a:b"])
async def test_an_unreadable_origin_in_a_claim_is_refused(api: RegistryApi, origin: str) -> None:
    for place in (ACME | {"origin": origin}, ACME | {"card_origins": [origin]}):
        body = {"worker": "a", "held": {}, "credentials": [place]}
        assert (await api.ask("POST", f"{PATH}/claim", body, key=Role.PROBER)).status == 422


async def test_a_secret_in_a_claim_is_refused(api: RegistryApi) -> None:
    body = {"worker": "a", "held": {}, "credentials": [ACME | {"bearer": "a-secret-token"}]}
    answer = await api.ask("POST", f"{PATH}/claim", body, key=Role.PROBER)
    assert answer.status == 422
    assert b"a-secret-token" not in answer.body


@pytest.mark.both_databases
async def test_one_fault_of_a_credential_makes_one_event_metric_and_warning(
    api: RegistryApi, clock: WoundClock
) -> None:
    fault = {"state": "credentials_rejected", "fault_seconds": 12, "detail": "HTTP 401"}
    rejected: dict[str, Any] = ACME | fault
    await missing(api, "a", ACME | {"state": "works"}, LAB)
    await api.sweep()
    assert await api.events(type="prober.credential_failed") == []
    for _ in range(3):
        clock.advance(15)
        await missing(api, "a", rejected, LAB)
        await missing(api, "b", rejected)
        await api.sweep()
    [event] = await api.events(type="prober.credential_failed")
    payload = {
        "key_id": "key_prober_", "credential": "acme", "origin": "https://agents.acme.example",
        "fault": "credentials_rejected", "detail": "HTTP 401",
    }  # fmt: skip
    assert event["payload"].items() >= payload.items()
    # The begin is that of the fault, not that of the event.
    begin, logged = (datetime.fromisoformat(at) for at in (event["payload"]["since"], event["created_at"]))
    assert (logged - begin).total_seconds() == 12
    faults = (await api.ask("GET", "/api/v1/monitor", key=Role.READER)).json()["credential_faults"]
    assert [(each["name"], each["fault"]) for each in faults] == [("acme", "credentials_rejected")]
    clock.advance(15)
    for worker in "ab":
        await missing(api, worker, ACME | {"state": "works"})
    await api.sweep()
    [event] = await api.events(type="prober.credential_fault_ended")
    assert event["payload"].items() >= (payload | {"end": "works"}).items()
    assert (await api.ask("GET", "/api/v1/monitor", key=Role.READER)).json()["credential_faults"] == []
    # A fault that returns soon has no event yet. API and metric show it at once.
    clock.advance(15)
    await missing(api, "a", rejected)
    await api.sweep()
    assert len(await api.events(type="prober.credential_failed")) == 1
    [again] = (await api.ask("GET", "/api/v1/monitor", key=Role.READER)).json()["credential_faults"]
    assert (again["name"], again["detail"]) == ("acme", "HTTP 401")
    assert await scraped_fault(api) == clock.at_s - 12


async def scraped_fault(api: RegistryApi) -> float | None:
    scraped = Scraped((await api.ask("GET", "/metrics", key=Role.READER)).body.decode())
    name = "lifesign_registry_credential_fault_since_timestamp_seconds"
    return scraped.value(name, key="key_prober_", credential="acme", fault="credentials_rejected")


async def test_a_prober_whose_credential_is_rejected_lacks_one(api: RegistryApi) -> None:
    rejected = ACME | {"state": "credentials_rejected"}
    await missing(api, "a", ACME | {"state": "works"})
    assert [each["held_by"] for each in await missing(api, "b", rejected)] == [f"{HOLDER}/a"]
    # If it works nowhere, the answer counts as `gated` for all of them. A host has one prober: the others do
    # not know the state.
    for state in ({"state": "credentials_rejected"}, {}):
        await missing(api, "a", ACME | state)
        assert await missing(api, "b", rejected) == []
        assert await missing(api, "a", ACME | state) == []
    assert len(await missing(api, "c")) == 1


async def test_restarted_prober_with_a_known_fault_lacks_a_credential_until_its_own_works(
    api: RegistryApi, clock: WoundClock
) -> None:
    await missing(api, "a", ACME | {"state": "works"})
    await missing(api, "b", ACME | {"state": "credentials_rejected"})
    clock.advance(15)
    await api.sweep()
    # After a restart its state is unknown, and its first answer may be a refusal.
    lacked = await missing(api, "b", ACME)
    assert [each["held_by"] for each in lacked] == [f"{HOLDER}/a"]
    assert await shown(api) == lacked
    assert await missing(api, "b", ACME | {"state": "works"}) == []
    assert await shown(api) == []
    # One that never had a fault lacks nothing.
    assert await missing(api, "b", LAB, ACME | {"name": "other"}) == []


REJECTED: dict[str, Any] = {"state": "credentials_rejected", "fault_seconds": 1}


@pytest.mark.both_databases
async def test_first_refusal_after_the_end_of_a_working_prober_is_not_measured(
    api: RegistryApi, clock: WoundClock
) -> None:
    await missing(api, "a", ACME | {"state": "works", "worked_seconds": 3})
    untested = await claim(api, "other", ACME, key=Role.ADMIN)
    # It may be a good one, so that neither log nor monitor call it missing.
    assert untested["missing_credentials"] == await shown(api) == []
    assert [each["held_by"] for each in untested["working_credentials"]] == [f"{HOLDER}/a"]
    await leave(api, "a")
    clock.advance(20)
    assert await is_refusal_unmeasured(api)
    clock.advance(20)
    assert await is_refusal_unmeasured(api, **REJECTED)
    assert [each["held_by"] for each in await shown(api)] == [f"{HOLDER}/a"]
    clock.advance(GONE_SECONDS - 40)
    assert not await is_refusal_unmeasured(api, **REJECTED)


@pytest.mark.both_databases
async def test_restarted_prober_keeps_the_time_at_which_its_credential_worked(
    api: RegistryApi, clock: WoundClock
) -> None:
    await missing(api, "a", ACME | {"state": "works"})
    assert await is_refusal_unmeasured(api, **REJECTED)
    await leave(api, "a")
    # All targets that need the credential stay with the other prober.
    for _ in range(5):
        clock.advance(GONE_SECONDS - 1)
        await missing(api, "a-restarted", ACME)
        assert await is_refusal_unmeasured(api, **REJECTED)


async def test_credential_that_is_refused_to_all_probers_is_missing_nowhere(api: RegistryApi) -> None:
    await missing(api, "a", ACME | {"state": "works", "worked_seconds": 600})
    assert not await is_refusal_unmeasured(api, state="works", worked_seconds=5)
    # The credential that worked last is refused.
    assert not await is_refusal_unmeasured(api, **REJECTED)
    await missing(api, "a", ACME | {"state": "works"})
    assert await is_refusal_unmeasured(api, **REJECTED)
    await missing(api, "a", ACME | REJECTED)
    assert not await is_refusal_unmeasured(api, **REJECTED)
    # It reports the fault no more when another worker has the target.
    await missing(api, "a", ACME | {"worked_seconds": 60})
    assert not await is_refusal_unmeasured(api, **REJECTED)
    # A fault of one worker is that of its key.
    await missing(api, "a", ACME | REJECTED)
    await missing(api, "a2", ACME | {"worked_seconds": 1})
    assert not await is_refusal_unmeasured(api, **REJECTED)


async def test_own_former_worker_does_not_hide_that_a_restarted_prober_is_refused(
    api: RegistryApi, clock: WoundClock
) -> None:
    await missing(api, "a", ACME | {"state": "works"})
    await leave(api, "a")
    clock.advance(20)
    grant = await claim(api, "a-restarted", ACME, key=Role.PROBER)
    assert grant["working_credentials"] == grant["missing_credentials"] == []
    assert await missing(api, "a-restarted", ACME | REJECTED) == []


async def test_credentials_of_a_revoked_key_are_forgotten(api: RegistryApi) -> None:
    await missing(api, "a", ACME | {"state": "works"})
    await missing(api, "ended", ACME | {"state": "works"})
    await leave(api, "ended")
    assert await is_refusal_unmeasured(api, **REJECTED)
    answer = await api.ask("DELETE", "/api/v1/keys/key_prober_")
    assert answer.status < 300, answer.body
    await api.sweep()
    assert not await is_refusal_unmeasured(api, **REJECTED)
