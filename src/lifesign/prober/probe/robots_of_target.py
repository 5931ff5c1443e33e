"""Check of the target's own robots.txt before a probe.

It is read first, and about once a day. If the connection for it fails, that is the result of the probe: a
host that is down is not shown as opted out. A host that accepts the request but does not answer has
disallowed nothing, and is probed: the check takes at most one request's time, a third of the probe's.
"""

from yarl import URL

from lifesign.client.candidate_urls import place_under
from lifesign.domain.observation.results import LayerResult
from lifesign.domain.probing.cadence import wants_robots
from lifesign.prober.probe.robots_rules import (
    MAX_ROBOTS_BYTES,
    ROBOTS_ACCEPT,
    ROBOTS_PATH,
    keeps_out,
    rules_in,
)
from lifesign.prober.probe.session import ProbeSession, not_measured


async def check_robots_rules(visit: ProbeSession) -> LayerResult | None:
    """Read the target's robots.txt if it is due; return why the target must not be probed, else None."""
    memory = visit.entry.memory
    if wants_robots(visit.entry.subject_id, memory, visit.at_s):
        failure = await _read(visit)
        if failure is not None:
            return failure
    if visit.recall("is_disallowed_by_robots"):
        return not_measured("its robots.txt forbids this prober")
    return None


async def _read(visit: ProbeSession) -> LayerResult | None:
    """Read robots.txt; return the failure if it showed that nothing can be requested."""
    place = place_under(visit.given.url, "", ROBOTS_PATH)
    fetched = await visit.ask(
        place,
        max_bytes=MAX_ROBOTS_BYTES,
        accept=ROBOTS_ACCEPT,
        may_leave_origin=True,
        is_part_enough=True,
        is_aside=True,
    )
    if fetched is None or visit.is_late:
        return not_measured("no time was left after its robots.txt")
    if not visit.may_ask(place):
        return visit.layer(fetched)
    robots = rules_in(fetched)
    visit.learned["robots_read_at_s"] = visit.at_s
    if robots is not None:
        visit.robots = robots
        visit.learned["is_disallowed_by_robots"] = keeps_out(robots, _paths(visit))
    return None


def _paths(visit: ProbeSession) -> list[str]:
    """Return the known paths of this host that a probe needs."""
    known = (visit.recall("interface_url"), visit.recall("health_url"))
    urls = [*visit.given.card_urls, *(URL(url, encoded=True) for url in known if url is not None)]
    origin = visit.given.url.origin()
    return [url.raw_path_qs for url in urls if url.origin() == origin]
