"""Inside the agent's own application: count what becomes of requests, serve the health document.

    asgi.py          wraps an ASGI app
    exchange.py      follows one request and says how it ended
    body.py          keeps as much of a body as may be inspected
    endpoint.py      answers /.well-known/agent-health
    recorder.py      counts; makes and publishes the document; usable without ASGI
    interaction.py   times one interaction of an agent without ASGI
    windows.py       keeps counts in files, or in memory
    window_files.py  shares the windows of several worker processes, and keeps them over restarts
    board.py         shares the published document
    private_file.py  opens files that only we may read
    metrics.py       tells Prometheus the numbers of the document, if it is asked to
    settings.py      refuses wrong settings

Needs nothing beyond pydantic and hdrhistogram: no web framework, no HTTP client.
"""

from lifesign.domain.health.outcome import Counting, Outcome
from lifesign.middleware.asgi import AgentHealthMiddleware
from lifesign.middleware.recorder import AgentHealth

__all__ = ["AgentHealth", "AgentHealthMiddleware", "Counting", "Outcome"]
