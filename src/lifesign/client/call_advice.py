"""Call advice: a cached decision whether to call an agent, within a time limit and without exceptions."""

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from threading import Lock
from time import monotonic
from typing import Final
from weakref import WeakKeyDictionary

from lifesign.client.candidate_urls import parse_entered_url
from lifesign.client.decision_cache import DecisionCache
from lifesign.client.health import check_timeout, fetch_health
from lifesign.domain.observation.decision import Decision, decide, decision_lifetime_seconds
from lifesign.domain.observation.results import ResultClass

DEFAULT_SECONDS: Final = 1.0
MAX_RUNNING_CHECKS: Final = 64
"""Maximum of agents that one event loop checks at a time; further ones are unknown meanwhile."""

_LOG = logging.getLogger(__name__)

_Checks = dict[str, "asyncio.Task[Decision]"]


async def should_call(url: str, *, timeout_seconds: float = DEFAULT_SECONDS) -> Decision:
    """Return whether to call an A2A agent, from its health document or from a recent decision about it.

    `url` is the agent's base URL, its card's, or its health document's. The decision comes within
    `timeout_seconds` (above 0, at most 300; 1 by default). If nothing is learned by then, `action` is
    `proceed_and_monitor`, and `reasons` has the cause.

    Never raises an error, also not for arguments that are not valid: then nothing is requested, `action` is
    `proceed_and_monitor`, and a warning is logged. Cancellation of the caller is raised as usual.

    A decision from a document counts for 300 seconds, but no longer than the document is fresh. Without a
    document, a decision counts for 30 seconds if the request failed, else for 300 seconds, and longer if the
    agent asks to wait (at most 86400). The process keeps at most 1000 decisions, and checks at most 64 agents
    at a time in each event loop. Concurrent callers of one URL share the requests, which end at the time
    limit of the first caller.

    The host of `url` may be anywhere, as for `fetch_health`: if strangers choose the URL, check it before.
    A healthy report is no proof that the agent can be trusted (draft 7).
    """
    return await _ADVISOR.should_call(url, timeout_seconds=timeout_seconds)


class CallAdvisor:
    """Advises whether to call agents, and caches the advice. Several event loops may share one."""

    def __init__(
        self,
        cache: DecisionCache | None = None,
        *,
        clock: Callable[[], float] = monotonic,
        max_running_checks: int = MAX_RUNNING_CHECKS,
    ) -> None:
        """`clock` returns seconds, for the expiry of decisions; time limits are the event loop's."""
        self._cache = DecisionCache() if cache is None else cache
        self._clock = clock
        self._max_running_checks = max_running_checks
        # A task belongs to its loop: callers in another one cannot wait for it.
        self._running: WeakKeyDictionary[asyncio.AbstractEventLoop, _Checks] = WeakKeyDictionary()
        self._lock = Lock()

    async def should_call(self, url: str, *, timeout_seconds: float = DEFAULT_SECONDS) -> Decision:
        """Return the advice whether to call an agent, from the cache or a new check."""
        try:
            check_timeout(timeout_seconds)
            given = parse_entered_url(url).url
        except (TypeError, ValueError, OverflowError) as error:
            _LOG.warning("no agent was checked: %s", error)
            return _unknown(ResultClass.NOT_MEASURED, str(error))
        # With and without a slash after the host, it is the same agent.
        key = f"{given.origin()}{given.raw_path_qs}"
        cached = self._cache.get(key, self._clock())
        if cached is not None:
            return cached
        running = self._running_checks()
        check = running.get(key)
        if check is None:
            if len(running) >= self._max_running_checks:
                reason = f"{len(running)} other agents are being checked, which is the limit"
                return _unknown(ResultClass.NOT_MEASURED, reason)
            check = running[key] = asyncio.create_task(self._check(key, timeout_seconds))
            # Not in the task itself: one that is cancelled before it begins runs nothing.
            check.add_done_callback(lambda _: running.pop(key, None))
        # Neither a caller that is cancelled nor one with a shorter time limit ends the check of the others.
        await asyncio.wait((check,), timeout=timeout_seconds)
        if not check.done():
            return _unknown(ResultClass.TIMEOUT, f"no decision within {timeout_seconds:g} s")
        if check.cancelled():
            return _unknown(ResultClass.NOT_MEASURED, "the check was cancelled")
        return check.result()

    def _running_checks(self) -> _Checks:
        """Return the checks of this event loop, by URL."""
        with self._lock:
            return self._running.setdefault(asyncio.get_running_loop(), {})

    async def _check(self, url: str, timeout_seconds: float) -> Decision:
        """Check the agent and keep the decision; never raises an error."""
        result, age_seconds, max_age_seconds = ResultClass.INTERNAL, None, None
        try:
            checked = await fetch_health(url, timeout_seconds=timeout_seconds)
            decision, result = checked.decision, checked.document_result
            age_seconds, max_age_seconds = checked.age_seconds, checked.refresh_in_seconds
        except Exception as error:  # noqa: BLE001 - it is logged with its traceback
            # A defect of ours must not stop a caller that only wanted advice.
            _LOG.exception("the check of an agent failed")
            decision = _unknown(result, f"the check failed: {type(error).__name__}")
        lifetime_seconds = decision_lifetime_seconds(
            decision, result, age_seconds=age_seconds, max_age_seconds=max_age_seconds
        )
        self._cache.put(url, decision, self._clock(), lifetime_seconds)
        return decision


def _unknown(result: ResultClass, reason: str) -> Decision:
    return decide(result, now=datetime.now(UTC), failure=reason)


_ADVISOR: Final = CallAdvisor()
