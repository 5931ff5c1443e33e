"""Call guard: gets advice before a call, and warns about agents to avoid or refuses to call them."""

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final

from lifesign.client.call_advice import DEFAULT_SECONDS, should_call
from lifesign.client.health import check_timeout
from lifesign.domain.net.allowed_addresses import without_password
from lifesign.domain.observation.decision import Action, Decision
from lifesign.domain.text.safe_text import harmless
from lifesign.errors import LifesignError

MAX_WARNED: Final = 1000
"""Maximum of agents about which a guard remembers that it warned; the longest unused one is forgotten."""

_LOG = logging.getLogger(__name__)


class CallRefused(LifesignError):
    """A call was not made, since the advice is to avoid the agent, and the guard refuses such calls."""

    def __init__(self, url: str, decision: Decision) -> None:
        super().__init__(f"{_shown(url)} was not called: {_reasons(decision)}")
        self.url = url
        """URL of the agent, as it was given; it may contain a password."""
        self.decision = decision


class CallGuard:
    """Gets advice before calls of agents. Agents without a health document are called as usual."""

    def __init__(
        self,
        *,
        refuse: bool = False,
        timeout_seconds: float = DEFAULT_SECONDS,
        ask: Callable[..., Awaitable[Decision]] = should_call,
    ) -> None:
        """`refuse`: raise CallRefused for agents to avoid, instead of a warning in the log.

        `timeout_seconds`: the longest delay of a call by the guard, above 0 and at most 300. Most calls get
        their advice from a cache. `ask` is called as `should_call` is.
        """
        check_timeout(timeout_seconds)
        self._refuse = refuse
        self._timeout_seconds = timeout_seconds
        self._ask = ask
        self._warned: OrderedDict[str, None] = OrderedDict()

    async def check(self, url: str, *, health_url: str | None = None) -> Decision:
        """Return the advice about an agent; raise CallRefused if it is to be avoided and the guard refuses.

        `health_url`: where its health document is, if `url` does not lead there. The log gets one warning
        each time the advice changes to avoid.
        """
        decision = await self._ask(health_url or url, timeout_seconds=self._timeout_seconds)
        if decision.action is not Action.AVOID:
            self._warned.pop(url, None)
            return decision
        if self._refuse:
            raise CallRefused(url, decision)
        if url not in self._warned:
            _LOG.warning(
                "%s is called although the advice is to avoid it: %s", _shown(url), _reasons(decision)
            )
        self._warned[url] = None
        self._warned.move_to_end(url)
        if len(self._warned) > MAX_WARNED:
            self._warned.popitem(last=False)
        return decision


def _shown(url: str) -> str:
    return harmless(without_password(url))


def _reasons(decision: Decision) -> str:
    """Return the reasons on one line; they may quote the agent."""
    return harmless("; ".join(decision.reasons))
