"""Layer message: the answer to a real message.

A message may cost the agent's owner money. So it is sent only if the definition contains one, and it is never
repeated because of a failure: another variant follows only an answer that does not know the previous one.
"""

from typing import Final
from uuid import uuid4

from yarl import URL

from lifesign.domain.a2a.message_variants import MessageVariant, place_of, variants_of, written
from lifesign.domain.a2a.task_poll import unfinished_task
from lifesign.domain.credentials.request_scope import Purpose
from lifesign.domain.observation.message_answer import MessageAnswer, best_of, classify_answer
from lifesign.domain.observation.results import LayerResult, ResultClass
from lifesign.prober.network.fetched import Fetched
from lifesign.prober.probe.session import ALTERED, ProbeSession, not_measured
from lifesign.prober.probe.task_poll import NotFinished, poll_task

MAX_ANSWER_BYTES: Final = 1024 * 1024
"""Maximum size of an answer to a message; a longer one counts as an answer and is not inspected."""
# With these a complete answer arrived, whose status means something else than with a GET.
_CLASSIFIED: Final = frozenset({
    ResultClass.OK, ResultClass.GATED, ResultClass.NOT_AN_AGENT, ResultClass.RATE_LIMITED,
    ResultClass.HTTP_ERROR, ResultClass.TOO_LARGE,
})  # fmt: skip

ACCEPT: Final = "application/json, application/a2a+json"


async def send_message(visit: ProbeSession, text: str) -> LayerResult | None:
    """Send a message to the agent, in several variants if needed, and wait for the task that it starts.

    None if the agent has no interface that accepts one, or nothing could be sent.
    """
    place = visit.recall("interface_url")
    # A prober with another key may have invented an interface whose card this prober has not read.
    is_known = place is not None and visit.recall("card_read_at_s") is not None
    if place is None or not is_known or not visit.is_authoritative(place):
        return None
    facts = (visit.recall(name) for name in ("interface_binding", "interface_tenant", "protocol_version"))
    if any(fact is not None and visit.has_removed(fact) for fact in facts):
        return not_measured(ALTERED)
    tenant = visit.recall("interface_tenant")
    found: list[tuple[MessageAnswer, LayerResult]] = []
    for spelling in variants_of(visit.recall("interface_binding"), visit.recall("protocol_version")):
        url = URL(place_of(spelling, place, tenant), encoded=True)
        fetched = await _send(visit, url, spelling, text, tenant)
        if fetched is None:
            break
        answer = _classify(fetched, is_rpc=spelling.is_rpc)
        task = unfinished_task(spelling, place, tenant, fetched.body)
        if task is not None and not visit.has_removed(task.task_id):
            polled = await poll_task(visit, task, fetched, max_bytes=MAX_ANSWER_BYTES)
            if isinstance(polled, NotFinished):
                return visit.layer(polled.unanswered or fetched, ResultClass.TIMEOUT, polled.reason)
            if polled is not None:
                fetched, answer = polled, _classify(polled, is_rpc=spelling.is_rpc)
        evidence = visit.keep(fetched.body) if answer.reason else None
        found.append((answer, visit.layer(fetched, answer.result, answer.reason, evidence)))
        if not answer.is_misspelt:
            return found[-1][1]
    if not found:
        return not_measured("no time was left") if visit.is_late else None
    best = best_of([answer for answer, _ in found])
    return next(layer for answer, layer in found if answer is best)


async def _send(
    visit: ProbeSession, url: URL, spelling: MessageVariant, text: str, tenant: str | None
) -> Fetched | None:
    return await visit.ask(
        url,
        method="POST",
        body=written(spelling, text, str(uuid4()), tenant),
        headers={"Content-Type": "application/json", **spelling.headers},
        accept=ACCEPT,
        max_bytes=MAX_ANSWER_BYTES,
        purpose=Purpose.MESSAGE,
    )


def _classify(fetched: Fetched, *, is_rpc: bool) -> MessageAnswer:
    if fetched.status is None or fetched.is_certificate_refused or fetched.result not in _CLASSIFIED:
        return MessageAnswer(fetched.result, fetched.reason)
    if fetched.result is ResultClass.TOO_LARGE:
        is_good = 200 <= fetched.status < 300
        result = ResultClass.OK if is_good else ResultClass.HTTP_ERROR
        return MessageAnswer(result, f"HTTP {fetched.status}, {fetched.reason}: not inspected")
    return classify_answer(fetched.status, fetched.content_type, fetched.body, is_rpc=is_rpc)
