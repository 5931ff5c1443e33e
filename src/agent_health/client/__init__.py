"""Outside, looking at one agent: read its card and its health document, and decide.

    health.py        fetch_health: is there an agent, how is it, and should I call it?
    places.py        where may its card and its health document stand?
    bounded_get.py   what comes back from one GET, whatever the peer does?
    redirects.py     where does a redirect lead, and do we follow it?
    http_headers.py  what do the answer's headers say that matters?

Needs the extra `client` (aiohttp). Decides nothing by itself: see `agent_health.decision`.
"""

from agent_health.client.health import HealthCheck, fetch_health

__all__ = ["HealthCheck", "fetch_health"]
