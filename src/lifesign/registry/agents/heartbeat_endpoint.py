"""Endpoint of heartbeats, for thousands of requests per second.

It comes before all routes and uses ASGI directly: a framework's work per request costs more than the
heartbeat itself.
"""

import logging
import re
import time

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from lifesign.domain.access.permissions import Permission, Principal, require
from lifesign.domain.models.agents import MAX_HEARTBEAT_BYTES, Heartbeat
from lifesign.domain.models.base import AGENT_ID_CHARACTERS
from lifesign.errors import LifesignError
from lifesign.registry.agents.receive_heartbeat import Answer, Arrival, receive_heartbeats
from lifesign.registry.errors import AgentNotFound
from lifesign.registry.request_handling.batcher import Batcher
from lifesign.registry.request_handling.error_statuses import error_response
from lifesign.registry.request_handling.execution import OperationDispatcher, headers_in, incarnation_in
from lifesign.serving.error_body import problem
from lifesign.storage.errors import StoreUnavailable

HEARTBEAT_PATH = "/api/v1/agents/{agent_id}/heartbeat"
MAX_GROUP = 500
"""Maximum of heartbeats per transaction: about 10 ms of work."""

_BEFORE, _, _AFTER = HEARTBEAT_PATH.partition("{agent_id}")
_AGENT_ID = re.compile(AGENT_ID_CHARACTERS)
_HEADERS = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
_log = logging.getLogger("lifesign.registry")


class HeartbeatEndpoint:
    """An ASGI app for `POST /api/v1/agents/{agent_id}/heartbeat`; `takes` recognises its requests."""

    def __init__(self, dispatcher: OperationDispatcher) -> None:
        self.groups: Batcher[Arrival, Answer] = Batcher(
            dispatcher.database, receive_heartbeats, most=MAX_GROUP
        )
        self._dispatcher = dispatcher

    def takes(self, scope: Scope) -> bool:
        """Return whether this request is a heartbeat."""
        path: str = scope["path"]
        return path.endswith(_AFTER) and path.startswith(_BEFORE) and scope["method"] == "POST"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Take one heartbeat."""
        try:
            answer = await self.groups.ask(await self._arrival(scope, receive))
        except StoreUnavailable as error:
            # It may be that no heartbeat of any agent can be stored.
            self._dispatcher.heard.note_refusal()
            answer = error
        except LifesignError as error:
            answer = error
        except ClientDisconnect:
            return
        except Exception:  # noqa: BLE001 - one request must not end the server
            _log.exception("a heartbeat failed")
            await problem(500, "internal", "internal error, which was logged")(scope, receive, send)
            return
        if isinstance(answer, LifesignError):
            await error_response(answer)(scope, receive, send)
            return
        self._dispatcher.heard.note()
        headers = [*_HEADERS, (b"content-length", b"%d" % len(answer))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    async def _arrival(self, scope: Scope, receive: Receive) -> Arrival:
        agent_id = scope["path"][len(_BEFORE) : -len(_AFTER)]
        sent_after_s = self._dispatcher.pauses.sent_after_s(time.monotonic())
        headers = headers_in(scope)
        digest = self._dispatcher.digest_of_caller(headers)
        self._dispatcher.check_rate(digest)

        def check(caller: Principal) -> None:
            require(caller, Permission.HEARTBEAT, agent_id)

        try:
            if not _AGENT_ID.fullmatch(agent_id):
                raise AgentNotFound(agent_id)
            heartbeat = await self._dispatcher.read(
                Heartbeat, receive, headers, MAX_HEARTBEAT_BYTES, digest=digest, check=check
            )
            return Arrival(agent_id, digest, incarnation_in(headers), heartbeat, sent_after_s)
        except LifesignError as fault:
            raise await self._dispatcher.refusal(digest, fault, check) from None
