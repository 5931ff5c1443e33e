"""Health of AI agents: middleware, prober, registry, SDK and tools.

docs/architecture.md describes each folder.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lifesign.middleware import AgentHealth, AgentHealthMiddleware, CountingProfile, Outcome

__all__ = ["AgentHealth", "AgentHealthMiddleware", "CountingProfile", "Outcome"]


def __getattr__(name: str) -> Any:
    # Imported late, so that a consumer of documents does not load the middleware.
    if name in __all__:
        from lifesign import middleware  # noqa: PLC0415

        return getattr(middleware, name)
    raise AttributeError(f"module 'lifesign' has no attribute {name!r}")
