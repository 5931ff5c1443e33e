"""In which words is somebody refused who looks at pages, and knows nothing of the API?"""

from agent_health.errors import AgentGone, AgentHealthError, InvalidRequest, StaleVersion
from agent_health.finding import Finding


def words_of(error: AgentHealthError) -> str:
    """Return what is wrong, and what may be done about it."""
    match error:
        case InvalidRequest():
            return "; ".join(map(_fault, error.faults))
        case AgentGone():
            return f"{error.agent_id} is {error.status} by now: nothing can be done until it registers again."
        case StaleVersion():
            return "It has changed since its page was loaded: look at it again, and then decide."
    return str(error)


def _fault(fault: Finding) -> str:
    """Return a fault by the name of its field, as a form has it."""
    field = fault.pointer.strip("/").replace("/", ", ").replace("_", " ")
    return f"{field[:1].upper()}{field[1:]}: {fault.message}" if field else fault.message
