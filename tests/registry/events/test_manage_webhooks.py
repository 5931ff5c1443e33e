import asyncio
import base64

import pytest
from tests.support.databases import WoundClock
from tests.support.registry_api import RegistryApi

from lifesign.domain.access.permissions import Role
from lifesign.registry.events import manage_webhooks
from lifesign.storage.engine.transaction import Database
from lifesign.storage.events import webhooks

WEBHOOKS = "/api/v1/webhooks"
URL = "https://hooks.example:8443/in?token=secret"


async def test_the_secret_is_shown_once(api: RegistryApi) -> None:
    answer = await api.ask("POST", WEBHOOKS, {"url": URL, "types": ["agent.lifecycle"], "agent_id": "a"})
    assert answer.status == 201, answer.body
    created = answer.json()
    prefix, secret = created["secret"].split("_", 1)
    assert (prefix, len(base64.b64decode(secret, validate=True))) == ("whsec", 32)
    (listed,) = (await api.ask("GET", WEBHOOKS)).json()["webhooks"]
    assert listed == {name: value for name, value in created.items() if name != "secret"}
    assert listed["types"] == ["agent.lifecycle"]


async def test_events_contain_the_host_and_no_secret(api: RegistryApi) -> None:
    created = (await api.ask("POST", WEBHOOKS, {"url": URL})).json()
    assert (await api.ask("DELETE", f"{WEBHOOKS}/{created['webhook_id']}")).status == 204
    events = await api.events()
    assert [event["type"] for event in events] == ["webhook.created", "webhook.deleted"]
    assert {event["payload"]["host"] for event in events} == {"hooks.example:8443"}
    assert "secret" not in str(events)
    assert (await api.ask("GET", WEBHOOKS)).json() == {"webhooks": []}


async def test_rotated_secret_is_shown_once_and_the_old_one_has_an_end(api: RegistryApi) -> None:
    created = (await api.ask("POST", WEBHOOKS, {"url": URL})).json()
    assert "previous_secret_expires_at" not in created
    rotated = (await api.ask("POST", f"{WEBHOOKS}/{created['webhook_id']}/rotate", {})).json()
    assert rotated.pop("secret") != created.pop("secret")
    assert rotated == {**created, "previous_secret_expires_at": "2025-11-21T12:00:00.000Z"}
    assert (await api.ask("GET", WEBHOOKS)).json() == {"webhooks": [rotated]}
    api.clock.advance(86_400)
    assert (await api.ask("GET", WEBHOOKS)).json() == {"webhooks": [created]}
    (event,) = await api.events(type="webhook.secret_rotated")
    assert event["payload"] == {
        "webhook_id": created["webhook_id"], "host": "hooks.example:8443", "failures": 0
    }  # fmt: skip


async def test_second_rotation_ends_the_oldest_secret(api: RegistryApi) -> None:
    created = (await api.ask("POST", WEBHOOKS, {"url": URL})).json()
    path = f"{WEBHOOKS}/{created['webhook_id']}/rotate"
    first, second = [(await api.ask("POST", path, {})).json()["secret"] for _ in range(2)]
    (stored,) = await api.database.read(lambda transaction: webhooks.listing(transaction, 10))
    assert stored.secrets_at(api.clock.now_s()) == [second, first]


@pytest.mark.parametrize("overlap", [-1, 604_801, "60", True])
async def test_rotation_with_an_invalid_overlap_changes_nothing(api: RegistryApi, overlap: object) -> None:
    created = (await api.ask("POST", WEBHOOKS, {"url": URL})).json()
    path = f"{WEBHOOKS}/{created['webhook_id']}/rotate"
    assert (await api.ask("POST", path, {"overlap_seconds": overlap})).status == 422
    (stored,) = await api.database.read(lambda transaction: webhooks.listing(transaction, 10))
    assert stored.secrets_at(api.clock.now_s()) == [created["secret"]]


async def test_only_an_operator_rotates_a_secret(api: RegistryApi) -> None:
    created = (await api.ask("POST", WEBHOOKS, {"url": URL})).json()
    path = f"{WEBHOOKS}/{created['webhook_id']}/rotate"
    for role in (Role.READER, Role.COORDINATOR, Role.PROBER, Role.ENROLL):
        assert (await api.ask("POST", path, {}, key=role)).status == 403
    assert (await api.ask("POST", f"{WEBHOOKS}/nothing/rotate", {})).status == 404


async def test_new_webhook_gets_only_later_events(api: RegistryApi) -> None:
    await api.register("agent-1")
    before = len(await api.events())
    created = (await api.ask("POST", WEBHOOKS, {"url": URL})).json()
    assert created["delivered_sequence"] == before


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest/meta-data",
        "http://[::ffff:169.254.169.254]/",
        "http://0.0.0.0/",
        "http://2852039166/",
        "https://user:password@hooks.example/",
        "https://",
        "gopher://hooks.example/",
        "https://hooks.example:99999/",
        "https://hooks.example/" + "x" * 2_048,
    ],
)
async def test_webhook_address_that_is_never_allowed_is_refused(api: RegistryApi, url: str) -> None:
    assert (await api.ask("POST", WEBHOOKS, {"url": url})).status == 422
    assert await api.events() == []


@pytest.mark.parametrize(
    "body", [{}, {"url": URL, "types": ["x"]}, {"url": URL, "agent_id": " "}, {"url": 1}]
)
async def test_invalid_request_is_refused(api: RegistryApi, body: dict[str, object]) -> None:
    assert (await api.ask("POST", WEBHOOKS, body)).status == 422


async def test_only_an_operator_manages_webhooks(api: RegistryApi) -> None:
    for role in (Role.READER, Role.COORDINATOR, Role.PROBER, Role.ENROLL):
        assert (await api.ask("POST", WEBHOOKS, {"url": URL}, key=role)).status == 403
        assert (await api.ask("GET", WEBHOOKS, key=role)).status == 403
    assert (await api.ask("DELETE", f"{WEBHOOKS}/nothing")).status == 404


@pytest.mark.both_databases
async def test_number_of_webhooks_is_bounded(api: RegistryApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manage_webhooks, "MAX_WEBHOOKS", 2)
    statuses = [(await api.ask("POST", WEBHOOKS, {"url": URL})).status for _ in range(3)]
    assert statuses == [201, 201, 409]
    assert await api.database.read(webhooks.count) == 2


@pytest.mark.both_databases
async def test_requests_at_once_create_no_webhook_above_the_limit(
    api: RegistryApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manage_webhooks, "MAX_WEBHOOKS", 2)
    await api.register("agent-1")
    answers = await asyncio.gather(*(api.ask("POST", WEBHOOKS, {"url": URL}) for _ in range(8)))
    assert sorted(answer.status for answer in answers) == [201] * 2 + [409] * 6
    assert await api.database.read(webhooks.count) == 2


@pytest.mark.parametrize(
    "url",
    [
        "http://10.1.2.3/",
        "http://127.0.0.1:8080/in",
        "http://localhost/",
        "http://[::1]/",
        "http://[fd12::1]/",
    ],
)
async def test_private_webhook_address_is_refused_unless_its_network_is_allowed(
    database: Database, clock: WoundClock, url: str
) -> None:
    closed = RegistryApi(database, clock, webhook_networks=["192.168.0.0/16"])
    await closed.add_keys()
    refused = await closed.ask("POST", WEBHOOKS, {"url": url})
    assert refused.status == 422
    assert "/url" in refused.body.decode()
    assert "--webhook-networks" in refused.json()["error"]["hint"]
    networks = ["10.1.0.0/16", "127.0.0.0/8", "::1/128", "fd12::/16"]
    opened = RegistryApi(database, clock, webhook_networks=networks)
    assert (await opened.ask("POST", WEBHOOKS, {"url": url})).status == 201
