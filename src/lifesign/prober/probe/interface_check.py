"""Layer transport: whether the interface that the card declares answers at all.

It sends a GET, which the interface does not support, and recognises the interface by its refusal; no message
is sent.
"""

from typing import Final

from yarl import URL

from lifesign.domain.credentials.request_scope import Purpose
from lifesign.domain.observation.interface_answer import allows_post, classify_interface, may_accept_post
from lifesign.domain.observation.results import LayerResult, ResultClass
from lifesign.prober.probe.session import ProbeSession, not_measured

# These describe a redirect or a request that was not sent; an earlier HTTP status is not the interface's.
_NOT_ITS_ANSWER: Final = frozenset({
    ResultClass.REDIRECT_REFUSED, ResultClass.BLOCKED_ADDRESS, ResultClass.INTERNAL,
})  # fmt: skip


async def probe_interface(visit: ProbeSession) -> LayerResult | None:
    """Probe the interface that the card names; None if there is no card, or nothing was sent."""
    place = visit.recall("interface_url")
    if place is None:
        has_card = visit.recall("card_read_at_s") is not None
        return not_measured("the card names no interface with plain HTTP") if has_card else None
    url = URL(place, encoded=True)
    if not visit.is_authoritative(place):
        return not_measured(f"its interface is at {url.origin()}, and no current card names it")
    # Some answer with a stream that never ends.
    fetched = await visit.ask(url, max_bytes=0, is_head_enough=True, purpose=Purpose.INTERFACE)
    if fetched is None:
        return not_measured("no time was left") if visit.is_late else None
    if fetched.status is None or fetched.is_certificate_refused or fetched.result in _NOT_ITS_ANSWER:
        return visit.layer(fetched)
    result, reason = classify_interface(fetched.status)
    visit.has_seen_page = fetched.status < 300 and fetched.content_type == "text/html"
    if may_accept_post(fetched.status) and await _names_post(visit, url):
        return visit.layer(fetched, ResultClass.OK, f"HTTP {fetched.status}, but POST is allowed")
    return visit.layer(fetched, result, reason)


def without_card(visit: ProbeSession, transport: LayerResult) -> LayerResult:
    """Return the layer as `not_an_agent`: a web page at a URL that no current card names.

    A new owner of a domain may serve a page at every URL.
    """
    reason = "a web page, and no current card names it as an interface"
    return visit.changed(transport, ResultClass.NOT_AN_AGENT, reason)


async def _names_post(visit: ProbeSession, url: URL) -> bool:
    """Send OPTIONS to a URL that has nothing for a GET, to see whether it accepts POST."""
    fetched = await visit.ask(
        url, method="OPTIONS", max_bytes=0, is_head_enough=True, purpose=Purpose.INTERFACE
    )
    return fetched is not None and allows_post(fetched.status, fetched.allow)
