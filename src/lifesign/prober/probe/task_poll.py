"""Polling of a task that a message started, until it is finished or the probe ends."""

import asyncio
from dataclasses import replace
from random import random
from typing import Final, NamedTuple
from uuid import uuid4

from yarl import URL

from lifesign.domain.a2a.response_outcome import task_state
from lifesign.domain.a2a.task_poll import UNFINISHED, UnfinishedTask, as_sent_answer
from lifesign.domain.common.backoff import Backoff
from lifesign.domain.credentials.request_scope import Purpose
from lifesign.domain.parsing.bounded_json import parse_or_none
from lifesign.domain.text.counts import pluralize
from lifesign.prober.network.fetched import Fetched
from lifesign.prober.probe.session import ProbeSession

MAX_POLLS: Final = 6
"""Requests for the state of one task."""
FIRST_WAIT_SECONDS: Final = 2.0
"""Maximum wait before the first of them; it doubles with each."""


class NotFinished(NamedTuple):
    """A task that is not known to finish in time."""

    reason: str
    unanswered: Fetched | None
    """The last request for its state, if that one had no answer."""


async def poll_task(
    visit: ProbeSession, task: UnfinishedTask, sent: Fetched, *, max_bytes: int
) -> Fetched | NotFinished | None:
    """Request a task until it is finished; return the answer as if the message's own answer had it.

    None if the agent gives no state of the task. After a request without an answer, time is left for another
    one, which shows whether the host can be reached.
    """
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    backoff = Backoff(random, first_wait_s=FIRST_WAIT_SECONDS)
    polls = 0
    unanswered: Fetched | None = None
    while polls < MAX_POLLS:
        wait_s = backoff.wait_s()
        kept_s = 0.0 if unanswered is None else visit.definition.timeouts.total_seconds
        if wait_s + kept_s >= visit.seconds_left:
            break
        await asyncio.sleep(wait_s)
        fetched = await _ask(visit, task, max_bytes)
        if fetched is None:
            break
        polls += 1
        if fetched.status is None:
            # The session ends the requests to a host that does not answer.
            unanswered = fetched
            continue
        unanswered = None
        state = task_state(parse_or_none(fetched.body))
        if state is None:
            return None
        if state not in UNFINISHED:
            took_ms = (loop.time() - began_s) * 1000
            return replace(fetched, latency_ms=round(sent.latency_ms + took_ms, 3))
    reason = f"the task is not finished after {pluralize(polls, 'request')} for its state"
    return NotFinished(reason, unanswered)


async def _ask(visit: ProbeSession, task: UnfinishedTask, max_bytes: int) -> Fetched | None:
    """Request the state of a task once."""
    request = task.request(str(uuid4()))
    content_type = {} if request.body is None else {"Content-Type": "application/json"}
    fetched = await visit.ask(
        URL(request.url, encoded=True),
        method=request.method,
        body=request.body,
        headers={**content_type, **task.spelling.headers},
        accept="application/json, application/a2a+json",
        max_bytes=max_bytes,
        is_aside=True,
        purpose=Purpose.MESSAGE,
    )
    return None if fetched is None else replace(fetched, body=as_sent_answer(task.spelling, fetched.body))
