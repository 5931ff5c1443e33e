"""Call advice in the client of the A2A SDK (a2a-sdk 1.x), which has to be installed."""

from typing import Final

from a2a.client.interceptors import AfterArgs, BeforeArgs, ClientCallInterceptor
from a2a.types import AgentCard

from lifesign.client.call_advice import DEFAULT_SECONDS
from lifesign.client.hooks.call_guard import CallGuard

CHECKED_METHODS: Final = frozenset({"send_message", "send_message_streaming"})
"""Methods that assign work to an agent. Others concern existing work: they are never delayed or refused."""


class AdviceInterceptor(ClientCallInterceptor):
    """Interceptor of an A2A SDK client that asks for advice before each message is sent.

    Pass it in `interceptors` of `create_client` or `ClientFactory.create`. One instance serves any number of
    clients, in one event loop or several.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        refuse: bool = False,
        timeout_seconds: float = DEFAULT_SECONDS,
    ) -> None:
        """`url`: the agent's base URL, its card's, or its health document's.

        Without it, the first HTTP interface of the client's card is checked; a card without one is not
        checked. `refuse` and `timeout_seconds`: see `CallGuard`.
        """
        self._url = url
        self._guard = CallGuard(refuse=refuse, timeout_seconds=timeout_seconds)

    async def before(self, args: BeforeArgs) -> None:
        """Before a message: if the agent is to be avoided, raise CallRefused or log a warning."""
        if args.method not in CHECKED_METHODS:
            return
        url = _http_url(args.agent_card) if self._url is None else self._url
        if url is not None:
            await self._guard.check(url)

    async def after(self, args: AfterArgs) -> None:
        """Do nothing, since advice is only needed before a call."""


def _http_url(card: AgentCard) -> str | None:
    urls = (interface.url for interface in card.supported_interfaces)
    return next((url for url in urls if url.lower().startswith(("http://", "https://"))), None)
