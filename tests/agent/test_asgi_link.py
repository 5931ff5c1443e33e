import asyncio
import contextlib
import errno
import os
import shutil
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from tests.support.asgi_client import ask
from tests.support.scripted_registry import (
    KEY,
    OWN_KEY,
    ScriptedRegistry,
    refusal,
    scripted_registry,
)
from tests.support.virtual_loop import in_virtual_time

from lifesign import AgentHealthMiddleware
from lifesign.agent import AgentLink, beat_election
from lifesign.errors import InvalidValue

APPS: dict[str, Callable[[Any], Any]] = {
    "linked": lambda link: link,
    "linked and measured": lambda link: AgentHealthMiddleware(link, agent_id="a"),
}


class Desk:
    """An app whose answers wait until the test lets them go."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.log: list[str] = []
        self.app = Starlette(
            routes=[Route("/now", self._now), Route("/later", self._later)], lifespan=self._lifespan
        )

    async def _now(self, _request: Request) -> PlainTextResponse:
        return PlainTextResponse("now")

    async def _later(self, _request: Request) -> PlainTextResponse:
        await self.may_answer.wait()
        return PlainTextResponse("later")

    @contextlib.asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        self.log.append("started")
        yield
        self.log.append("ended")


class Server:
    """The lifespan events of an ASGI server."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._incoming: asyncio.Queue[dict[str, str]] = asyncio.Queue()
        self._sent: asyncio.Queue[Any] = asyncio.Queue()
        self.task: asyncio.Task[None] | None = None

    async def start(self) -> str:
        scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}
        self.task = asyncio.create_task(self._app(scope, self._incoming.get, self._sent.put))
        return await self._tell("lifespan.startup")

    async def stop(self) -> str:
        result = await self._tell("lifespan.shutdown")
        assert self.task is not None
        await self.task
        return result

    async def _tell(self, kind: str) -> str:
        assert self.task is not None
        await self._incoming.put({"type": kind})
        answer = asyncio.create_task(self._sent.get())
        await asyncio.wait({answer, self.task}, return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            return str(answer.result()["type"])
        answer.cancel()
        return "nothing"


def link_to(registry: ScriptedRegistry, app: Any, directory: str, **settings: Any) -> AgentLink:
    return AgentLink(
        app,
        agent_id="a",
        registry=registry.url,
        key=KEY,
        key_file=f"{directory}/a.key",
        lock_dir=f"{directory}/crew",
        **settings,
    )


def in_directory(test: Callable[..., Any]) -> Callable[..., None]:
    """Give a test with virtual time a separate directory."""

    def run(tmp_path: Path) -> None:
        in_virtual_time(test)(str(tmp_path))

    return run


@in_directory
async def test_app_that_is_served_again_registers_again(directory: str) -> None:
    async with scripted_registry() as registry:
        server = Server(link_to(registry, Desk().app, directory))
        for _ in range(2):
            await server.start()
            await asyncio.sleep(1)
            await server.stop()
    assert [registry.functions().count(name) for name in ("POST", "DELETE")] == [2, 2]


@in_directory
async def test_linked_app_may_be_monitored_by_both(directory: str) -> None:
    async with scripted_registry() as registry:
        where = {"card_url": "https://agent.example", "monitoring": "both"}
        server = Server(link_to(registry, Desk().app, directory, **where))
        await server.start()
        await registry.until_beats(1)
        assert {name: registry.registration[name] for name in where} == where
        await server.stop()
    with pytest.raises(InvalidValue, match="card_url"):
        link_to(registry, Desk().app, directory, monitoring="both")


@pytest.mark.parametrize("kind", APPS)
def test_linked_app_is_registered_while_served_with_running_requests_as_load(
    kind: str, tmp_path: Path
) -> None:
    @in_virtual_time
    async def test() -> None:
        async with scripted_registry() as registry:
            desk = Desk()
            app = APPS[kind](link_to(registry, desk.app, str(tmp_path), role_id="billing"))
            server = Server(app)
            assert await server.start() == "lifespan.startup.complete"
            assert desk.log == ["started"]
            await registry.until_beats(1)
            assert registry.registration["role_id"] == "billing"
            assert registry.beats()[-1].body["current_load"] == 0
            waiting = [asyncio.create_task(ask(app, "/later")) for _ in range(3)]
            assert (await ask(app, "/now")).body == b"now"
            await registry.until_beats(1)
            assert registry.beats()[-1].body["current_load"] == 3
            desk.may_answer.set()
            assert [answer.body for answer in await asyncio.gather(*waiting)] == [b"later"] * 3
            await registry.until_beats(1)
            assert registry.beats()[-1].body["current_load"] == 0
            assert await server.stop() == "lifespan.shutdown.complete"
            assert desk.log == ["started", "ended"]
            assert registry.status == "deregistered"
            assert registry.beats()[-1].body["status"] == "draining"
            assert registry.functions()[:2] == ["GET", "POST"]
            assert {asked.headers["X-API-Key"] for asked in registry.asked[2:]} == {OWN_KEY}

    test()


@in_directory
async def test_running_requests_are_finished_before_deregistration(directory: str) -> None:
    async with scripted_registry() as registry:
        desk = Desk()
        link = link_to(registry, desk.app, directory)
        server = Server(link)
        await server.start()
        await registry.until_beats(1)
        waiting = asyncio.create_task(ask(link, "/later"))
        await asyncio.sleep(0.01)
        stopping = asyncio.create_task(server.stop())
        await registry.until_beats(2)
        assert (registry.status, registry.beats()[-1].body["current_load"]) == ("draining", 1)
        desk.may_answer.set()
        await waiting
        await stopping
        assert registry.status == "deregistered"


@in_directory
async def test_unreachable_registry_delays_neither_start_nor_requests_nor_shutdown(directory: str) -> None:
    async with scripted_registry() as registry:
        for function in ("POST", "beat", "GET", "DELETE"):
            registry.answers(function, *[refusal(503, "unavailable")] * 10_000)
        link = link_to(registry, Desk().app, directory)
        server = Server(link)
        assert await server.start() == "lifespan.startup.complete"
        assert (await ask(link, "/now")).status == 200
        await asyncio.sleep(1000)
        assert (await ask(link, "/now")).status == 200
        assert await server.stop() == "lifespan.shutdown.complete"


async def raises(scope: Any, _receive: Any, send: Any) -> None:
    assert scope["type"] == "http"
    await send({"type": "http.response.start", "status": 200})
    await send({"type": "http.response.body", "body": b"ok"})


async def returns(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "http":
        await raises(scope, receive, send)


async def returns_after_its_start(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "http":
        await raises(scope, receive, send)
        return
    await receive()
    await send({"type": "lifespan.startup.complete"})


@pytest.mark.parametrize("app", [raises, returns, returns_after_its_start])
def test_app_without_lifespan_is_registered_and_deregistered(app: Any, tmp_path: Path) -> None:
    @in_virtual_time
    async def test() -> None:
        async with scripted_registry() as registry:
            link = link_to(registry, app, str(tmp_path))
            server = Server(link)
            assert await server.start() == "lifespan.startup.complete"
            assert (await ask(link, "/")).body == b"ok"
            await registry.until_beats(1)
            assert await server.stop() == "lifespan.shutdown.complete"
            assert registry.status == "deregistered"

    test()


@in_directory
async def test_server_without_lifespan_registers_with_the_first_request(directory: str) -> None:
    async with scripted_registry() as registry:
        link = link_to(registry, returns, directory)
        assert (await ask(link, "/")).status == 200
        await registry.until_beats(1)
        await link.end()


@in_directory
async def test_app_that_fails_to_start_is_not_registered_and_its_error_is_raised(directory: str) -> None:
    async def fails(_scope: Any, receive: Any, _send: Any) -> None:
        await receive()
        raise ZeroDivisionError

    async with scripted_registry() as registry:
        server = Server(link_to(registry, fails, directory))
        assert await server.start() == "nothing"
        assert server.task is not None
        with pytest.raises(ZeroDivisionError):
            await server.task
        assert registry.asked == []


@in_directory
async def test_drain_requested_by_the_registry_deregisters_the_app_and_keeps_serving(
    directory: str,
) -> None:
    farewells: list[str] = []

    async def farewell() -> None:
        farewells.append("bye")

    async with scripted_registry() as registry:
        link = link_to(registry, Desk().app, directory, on_drain=farewell)
        server = Server(link)
        await server.start()
        await registry.until_beats(1)
        registry.commands = [{"id": "c", "command": "drain"}]
        await registry.until(lambda: registry.status == "deregistered")
        assert (await ask(link, "/now")).body == b"now"
        # A new worker does not register the agent again while a worker of that time is alive.
        other_server = Server(link_to(registry, Desk().app, directory))
        await other_server.start()
        await asyncio.sleep(1000)
        assert registry.incarnation == 1
        assert farewells == ["bye"]
        await server.stop()
        await other_server.stop()


@in_directory
async def test_workers_replaced_one_after_the_other_register_again_after_a_drain(directory: str) -> None:
    async with scripted_registry() as registry:
        servers = [Server(link_to(registry, Desk().app, directory)) for _ in range(2)]
        for server in servers:
            await server.start()
        await registry.until_beats(1)
        registry.commands = [{"id": "c", "command": "drain"}]
        await registry.until(lambda: registry.status == "deregistered")
        registry.commands = []
        for number in range(2):
            servers.append(Server(link_to(registry, Desk().app, directory)))
            await servers[-1].start()
            await asyncio.sleep(10)
            assert registry.incarnation == 1
            await servers[number].stop()
        await registry.until_beats(1)
        assert (registry.incarnation, registry.status) == (2, "active")
        await servers[2].stop()
        await servers[3].stop()
        assert registry.status == "deregistered"


@in_directory
async def test_one_of_several_workers_sends_heartbeats_and_another_continues_its_incarnation(
    directory: str,
) -> None:
    async with scripted_registry() as registry:
        desks = [Desk() for _ in range(3)]
        links = [link_to(registry, desk.app, directory) for desk in desks]
        servers = [Server(link) for link in links]
        for server in servers:
            await server.start()
        await registry.until_beats(1)
        waiting = [asyncio.create_task(ask(link, "/later")) for link in links]
        await registry.until_beats(2)
        assert registry.beats()[-1].body["current_load"] == 3
        gaps = [after.at_s - before.at_s for before, after in pairwise(registry.beats()[1:])]
        # One interval apart: no other worker sends one between.
        assert min(gaps) > 20
        for desk in desks:
            desk.may_answer.set()
        await asyncio.gather(*waiting)
        # The first one had the lead.
        await servers[0].stop()
        assert registry.status == "active"
        await registry.until_beats(2)
        assert registry.functions().count("POST") == 1
        await servers[2].stop()
        assert registry.status == "active"
        await servers[1].stop()
        assert registry.status == "deregistered"


@in_directory
async def test_ending_worker_hands_heartbeats_to_another(directory: str) -> None:
    async with scripted_registry() as registry:
        desks = [Desk() for _ in range(2)]
        links = [link_to(registry, desk.app, directory) for desk in desks]
        servers = [Server(link) for link in links]
        for server in servers:
            await server.start()
        await registry.until_beats(1)
        waiting = asyncio.create_task(ask(links[0], "/later"))
        await asyncio.sleep(0.01)
        stopping = asyncio.create_task(servers[0].stop())
        await registry.until_beats(2)
        answer = registry.beats()[-1].body
        assert (answer["status"], answer["current_load"], stopping.done()) == ("active", 1, False)
        desks[0].may_answer.set()
        await waiting
        await stopping
        await servers[1].stop()
        assert registry.status == "deregistered"


@in_directory
async def test_workers_that_end_together_deregister_the_agent(directory: str) -> None:
    async with scripted_registry() as registry:
        servers = [Server(link_to(registry, Desk().app, directory)) for _ in range(4)]
        for server in servers:
            await server.start()
        await registry.until_beats(1)
        await asyncio.gather(*(server.stop() for server in servers))
        assert registry.status == "deregistered"


@in_directory
async def test_workers_whose_lock_directory_is_removed_continue_the_incarnation(directory: str) -> None:
    async with scripted_registry() as registry:
        servers = [Server(link_to(registry, Desk().app, directory)) for _ in range(2)]
        for server in servers:
            await server.start()
        await registry.until_beats(1)
        shutil.rmtree(f"{directory}/crew")
        await asyncio.sleep(3)
        await servers[0].stop()
        assert registry.status == "active"
        await registry.until_beats(2)
        assert registry.incarnation == 1
        await servers[1].stop()
        assert registry.status == "deregistered"


@in_directory
async def test_next_worker_of_a_displaced_agent_does_not_supersede_the_other_process(directory: str) -> None:
    async with scripted_registry() as registry:
        servers = [Server(link_to(registry, Desk().app, directory)) for _ in range(3)]
        for server in servers:
            await server.start()
        await registry.until_beats(1)
        # Another process registers as this agent.
        registry.incarnation += 1
        await registry.until(lambda: registry.functions().count("POST") == 2)
        await servers[0].stop()
        # The answer is lost: the next worker knows nevertheless that the incarnation is not its own.
        registry.answers("POST", (0, {}))
        await registry.until(lambda: registry.functions().count("POST") == 4)
        assert (registry.incarnation, registry.status) == (2, "active")
        shutil.rmtree(f"{directory}/crew")
        await asyncio.sleep(3)
        await servers[1].stop()
        await registry.until(lambda: registry.functions().count("POST") == 5)
        assert (registry.incarnation, registry.status) == (2, "active")
        registry.status = "dead"
        await registry.until_beats(1)
        assert registry.incarnation == 3
        await servers[2].stop()
        assert registry.status == "deregistered"


def remove_lead(directory: str) -> None:
    Path(directory, "crew", "lead").unlink()


@in_directory
async def test_worker_that_stood_still_steps_back_if_another_one_leads(directory: str) -> None:
    async with scripted_registry() as registry:
        former, other = [link_to(registry, Desk().app, directory) for _ in range(2)]
        servers = [Server(former), Server(other)]
        for server in servers:
            await server.start()
        await registry.until_beats(1)
        # As if the first process were stopped meanwhile.
        remove_lead(directory)
        assert other._workers.can_lead()
        await asyncio.sleep(30)
        assert (former._place.incarnation, other._place.incarnation, registry.incarnation) == (None, 1, 1)
        for server in servers:
            await server.stop()
        assert registry.status == "deregistered"


@in_directory
async def test_worker_that_could_not_open_files_takes_over_later(directory: str) -> None:
    async with scripted_registry() as registry:
        servers = [Server(link_to(registry, Desk().app, directory)) for _ in range(2)]
        for server in servers:
            await server.start()
        await registry.until_beats(1)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(beat_election, "open_private", raise_no_descriptors)
            await asyncio.sleep(100)
        await servers[0].stop()
        assert registry.status == "active"
        await registry.until_beats(2)
        assert registry.incarnation == 1
        await servers[1].stop()
        assert registry.status == "deregistered"


def raise_no_descriptors(*_: object, **__: object) -> int:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


@in_directory
async def test_worker_without_a_lock_file_sends_its_own_heartbeats(directory: str) -> None:
    (Path(directory) / "crew").write_text("in the way")
    async with scripted_registry() as registry:
        server = Server(link_to(registry, Desk().app, directory))
        await server.start()
        await registry.until_beats(1)
        await server.stop()
        assert registry.status == "deregistered"


def test_invalid_settings_are_refused_where_the_app_is_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LIFESIGN_KEY", raising=False)
    monkeypatch.delenv("LIFESIGN_REGISTRY", raising=False)
    with pytest.raises(InvalidValue, match="registry"):
        AgentLink(returns, agent_id="a", key=KEY)
    with pytest.raises(InvalidValue, match="key"):
        AgentLink(returns, agent_id="a", registry="http://127.0.0.1:1")
    with pytest.raises(InvalidValue, match="agent_id"):
        AgentLink(returns, agent_id="two words", registry="http://127.0.0.1:1", key=KEY)


def test_app_is_served_by_a_server_without_asyncio(caplog: pytest.LogCaptureFixture) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": f"{scope['type']} served"})

    sent: list[str] = []

    async def send(message: dict[str, str]) -> None:
        sent.append(message["type"])

    async def receive() -> None:
        raise AssertionError

    link = AgentLink(app, agent_id="a", registry="http://127.0.0.1:9", key="ahk_given")
    for _ in range(2):
        # As trio runs it: without an event loop of asyncio.
        with pytest.raises(StopIteration):
            link({"type": "http"}, receive, send).send(None)
    assert sent == ["http served"] * 2
    assert len(caplog.records) == 1
    with pytest.raises(StopIteration):
        link.end().send(None)
