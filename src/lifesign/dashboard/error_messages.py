"""Error messages for visitors who do not know the API."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from lifesign.domain.common.finding import Finding
from lifesign.domain.errors import InvalidRequest
from lifesign.errors import LifesignError
from lifesign.registry.errors import AgentGone, StaleVersion

LABELS: Final[Mapping[str, str]] = MappingProxyType({
    "agent": "Agent",
    "capability": "Capability",
    "directory": "Directory",
    "group": "Subject",
    "health": "Health",
    "holder": "Current or former holder",
    "host": "Host",
    "pool": "Pool",
    "q": "Part of id or name",
    "observed": "Observed",
    "sort": "Order",
    "status": "Status",
})  # fmt: skip
"""Labels of query parameters in forms."""
PLACES: Final = frozenset({"after", "before", "cursor"})
"""Query parameters without a form field: they come with a link to another page."""

_EXPECTED: Final = "expected "


def words_of(error: LifesignError, *, is_form: bool) -> str:
    """Return an error's text for a page, with a remedy; `is_form`: the request was a form, else a page."""
    match error:
        case InvalidRequest() if not is_form:
            faults = dict.fromkeys(map(_query_fault, error.faults))
            return f"The address of this page has invalid parameters. {' '.join(faults)}"
        case InvalidRequest():
            return "; ".join(map(_fault, error.faults))
        case AgentGone():
            return f"{error.agent_id} is {error.status}: it must register again before it can get commands."
        case StaleVersion():
            return "The record has changed since its page was loaded. Reload the page, then decide."
    return str(error)


def _fault(fault: Finding) -> str:
    """Return a fault by the name of its field, as a form has it."""
    field = fault.pointer.strip("/").replace("/", ", ").replace("_", " ")
    return f"{field[:1].upper()}{field[1:]}: {fault.message}" if field else fault.message


def _query_fault(fault: Finding) -> str:
    name = fault.pointer.strip("/")
    if name in PLACES:
        return "The link to this page is incomplete, or belongs to another list. Start at the first page."
    wanted = fault.message.removeprefix(_EXPECTED).replace("'", "")
    text = f"has to be {wanted}" if fault.message.startswith(_EXPECTED) else fault.message
    return f"{LABELS.get(name, name)} {text}."
