"""Pages as responses.

Templates escape all values, and remove characters that move a cursor or reverse a line. A page may only load
from this server, and run its own scripts: even if markup from an agent were not escaped, it could do nothing.
"""

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import cache
from types import MappingProxyType
from typing import Any, Final

from jinja2 import Environment
from starlette.responses import Response

from lifesign.dashboard import labels
from lifesign.dashboard.assets import asset_path
from lifesign.dashboard.page_links import safe_link
from lifesign.domain.lifecycle.status_table import ALIVE
from lifesign.domain.models.agents import AgentSummary
from lifesign.domain.models.base import moment
from lifesign.domain.targets.display_name import display_name
from lifesign.domain.text.counts import count_text, percent_text, pluralize
from lifesign.domain.text.durations import latency_text, precise_text
from lifesign.domain.text.times import utc_text
from lifesign.serving.templates import template_environment

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final[Mapping[str, str]] = MappingProxyType({
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    # Forms send their origin; other sites get no referrer.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
    "Vary": "Accept, Cookie",
})  # fmt: skip


def page(template: str, shown: Mapping[str, object], status: int = 200) -> Response:
    """Return a response with a rendered template; `shown` has the values for the template."""
    return Response(rendered(template, shown), status, HEADERS, "text/html")


def rendered(template: str, shown: Mapping[str, object]) -> str:
    """Return a rendered template as text."""
    return _environment().get_template(template).render(shown)


def load(templates: Iterable[str]) -> None:
    """Load and compile templates in advance, so that the first requests need not wait for them."""
    for template in templates:
        _environment().get_template(template)


@cache
def _environment() -> Environment:
    environment = template_environment("lifesign.dashboard")
    filters: dict[str, Any] = {
        "moment": labels.moment_text,
        "iso_time": _iso_time,
        "number": count_text,
        "pluralize": pluralize,
        "percent": percent_text,
        "ms": latency_text,
        "seconds": labels.duration_s,
        "setting": precise_text,
        "link": safe_link,
        "brief": labels.brief,
        "display_name": _display_name,
        "block": labels.block,
        "meaning": labels.meaning,
        "spaced": labels.as_words,
        "at": moment,
        "tojson_text": _json_text,
    }
    environment.filters.update(filters)
    environment.globals["asset"] = asset_path
    environment.globals["alive"] = ALIVE
    return environment


def _json_text(value: object) -> str:
    """Return JSON for people; it is escaped like any other text."""
    return json.dumps(value, indent=2, ensure_ascii=False)


def _display_name(agent: AgentSummary) -> str:
    return display_name(agent.agent_id, agent.name, agent.target_url)


def _iso_time(at: datetime) -> str:
    """Return a time in ISO 8601, for the `datetime` attribute."""
    return utc_text(at)
