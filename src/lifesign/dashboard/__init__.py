"""Web pages of the registry: rendered on the server, one small script, no build step.

A page calls the operations of the API (`RequestContext.ask`). Data that the API does not offer comes from
`storage`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lifesign.dashboard.routes import Dashboard
    from lifesign.registry.app import Registry


def new_dashboard(registry: "Registry") -> "Dashboard":
    """Return the pages of one server process.

    Called in that process, so that its supervisor loads no pages. Processes find this function by its module,
    which loads no command line.
    """
    from lifesign.dashboard.routes import Dashboard  # noqa: PLC0415 - the supervisor needs none

    return Dashboard(registry)
