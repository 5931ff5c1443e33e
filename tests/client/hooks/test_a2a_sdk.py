"""The real client of the A2A SDK asks a real agent over loopback."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from a2a.client import Client, create_client
from a2a.helpers import get_message_text, new_text_message
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, GetTaskRequest, Role, SendMessageRequest
from a2a.utils.errors import TaskNotFoundError
from starlette.applications import Starlette
from tests.support.uvicorn_thread import served

from lifesign import AgentHealthMiddleware
from lifesign.client.hooks import call_guard
from lifesign.client.hooks.a2a_sdk import AdviceInterceptor
from lifesign.client.hooks.call_guard import CallRefused
from lifesign.domain.observation.decision import Action

LOGGER = call_guard.__name__
PATIENT_SECONDS = 60


@dataclass
class Greeter(AgentExecutor):
    """Greets, and counts the messages."""

    messages: list[str] = field(default_factory=list)
    url: str = ""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.message is not None
        self.messages.append(get_message_text(context.message))
        await event_queue.enqueue_event(new_text_message("hello"))

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Nothing runs long enough to be canceled."""

    def app(self, url: str, outcome: str, *, streaming: bool) -> Any:
        interfaces = [
            AgentInterface(url="127.0.0.1:1", protocol_binding="GRPC", protocol_version="1.0"),
            AgentInterface(url=f"{url}/", protocol_binding="JSONRPC", protocol_version="1.0"),
        ]
        card = AgentCard(
            name="Greeter", version="1.0.0", supported_interfaces=interfaces,
            capabilities=AgentCapabilities(streaming=streaming),
        )  # fmt: skip
        handler = DefaultRequestHandler(self, InMemoryTaskStore(), card)
        routes = [*create_agent_card_routes(card), *create_jsonrpc_routes(handler, "/")]
        app = AgentHealthMiddleware(Starlette(routes=routes), agent_id=url)
        for _ in range(20):
            app.health.record(outcome, latency_ms=1)
        return app


@pytest.fixture(params=[False, True], ids=["single", "streaming"])
def make(request: pytest.FixtureRequest) -> Callable[[Greeter, str, str], Any]:
    """Return a function that makes the app of an agent, with or without streams."""
    return lambda greeter, url, outcome: greeter.app(url, outcome, streaming=request.param)


@pytest.fixture
def failing(make: Callable[[Greeter, str, str], Any]) -> Iterator[Greeter]:
    greeter = Greeter()
    with served(lambda url: make(greeter, url, "task_failed")) as url:
        greeter.url = url
        yield greeter


@pytest.fixture
def healthy(make: Callable[[Greeter, str, str], Any]) -> Iterator[Greeter]:
    greeter = Greeter()
    with served(lambda url: make(greeter, url, "answered")) as url:
        greeter.url = url
        yield greeter


async def send(client: Client) -> list[str]:
    message = new_text_message("hi", role=Role.ROLE_USER)
    answers = client.send_message(SendMessageRequest(message=message))
    return [get_message_text(answer.message) async for answer in answers]


async def test_an_agent_to_avoid_is_called_with_a_warning(
    failing: Greeter, caplog: pytest.LogCaptureFixture
) -> None:
    interceptor = AdviceInterceptor(timeout_seconds=PATIENT_SECONDS)
    async with await create_client(failing.url, interceptors=[interceptor]) as client:
        assert [await send(client) for _ in range(2)] == [["hello"]] * 2
    assert failing.messages == ["hi"] * 2
    (warning,) = [record for record in caplog.records if record.name == LOGGER]
    assert failing.url in warning.getMessage()


async def test_an_agent_to_avoid_is_not_called_if_the_caller_refuses(failing: Greeter) -> None:
    interceptor = AdviceInterceptor(refuse=True, timeout_seconds=PATIENT_SECONDS)
    async with await create_client(failing.url, interceptors=[interceptor]) as client:
        with pytest.raises(CallRefused) as refused:
            await send(client)
        assert refused.value.decision.action is Action.AVOID
        assert failing.messages == []
        # Requests about existing tasks are still sent.
        with pytest.raises(TaskNotFoundError):
            await client.get_task(GetTaskRequest(id="absent"))


async def test_healthy_agent_is_called_without_a_warning(
    healthy: Greeter, caplog: pytest.LogCaptureFixture
) -> None:
    interceptor = AdviceInterceptor(refuse=True, timeout_seconds=PATIENT_SECONDS)
    async with await create_client(healthy.url, interceptors=[interceptor]) as client:
        assert await send(client) == ["hello"]
    assert [record for record in caplog.records if record.name.startswith("lifesign")] == []


async def test_health_can_be_read_from_another_url(failing: Greeter, healthy: Greeter) -> None:
    interceptor = AdviceInterceptor(failing.url, refuse=True, timeout_seconds=PATIENT_SECONDS)
    async with await create_client(healthy.url, interceptors=[interceptor]) as client:
        with pytest.raises(CallRefused) as refused:
            await send(client)
    assert refused.value.url == failing.url
    assert healthy.messages == []
