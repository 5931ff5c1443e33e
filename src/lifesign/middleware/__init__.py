"""ASGI middleware: counts the outcomes of requests and serves the health document.

Needs nothing but pydantic and hdrhistogram.
"""

from lifesign.domain.health.outcome import CountingProfile, Outcome
from lifesign.middleware.asgi import AgentHealthMiddleware
from lifesign.middleware.recorder import AgentHealth

__all__ = ["AgentHealth", "AgentHealthMiddleware", "CountingProfile", "Outcome"]
