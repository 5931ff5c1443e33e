"""Check of the target's own robots.txt before a probe.

It is read first, about once a day, and with each recheck that an operator requests. If the connection for it
fails, that is the result of the probe: a host that is down is not shown as opted out. A host that accepts the
request but does not answer has disallowed nothing, and is probed: the check takes at most one request's time,
a third of the probe's.

A portal or a gateway on the prober's side may answer in place of the target. So a robots.txt that begins to
disallow the target is read again soon (`cadence.wants_robots`). If a robots.txt that disallowed the target is
missing later, or has no rules for the prober, the target stays disallowed until a second reading finds the
same.
"""

from yarl import URL

from lifesign.client.candidate_urls import place_under
from lifesign.domain.observation.results import LayerResult
from lifesign.domain.probing.cadence import Cadence, is_recheck_open, wants_robots
from lifesign.http_client.redirects import is_same_origin
from lifesign.prober.probe.robots_rules import (
    MAX_ROBOTS_BYTES,
    ROBOTS_ACCEPT,
    ROBOTS_PATH,
    keeps_out,
    needs_second_reading,
    rules_in,
)
from lifesign.prober.probe.session import ProbeSession, not_measured


async def check_robots_rules(visit: ProbeSession, cadence: Cadence) -> LayerResult | None:
    """Read the target's robots.txt if it is due; return why the target must not be probed, else None."""
    entry, at_s = visit.entry, visit.at_s
    is_recheck = is_recheck_open(entry.memory, entry.recheck_at_s, at_s)
    if is_recheck or wants_robots(entry.subject_id, entry.memory, cadence, at_s):
        failure = await _read(visit, is_recheck=is_recheck)
        if failure is not None:
            return failure
    if not visit.recall("is_disallowed_by_robots"):
        return None
    if visit.recall("disallowed_in_row"):
        return not_measured("its robots.txt forbids this prober")
    return not_measured("its robots.txt, which forbade this prober, has no rules now: it is read once more")


async def _read(visit: ProbeSession, *, is_recheck: bool) -> LayerResult | None:
    """Read robots.txt; return the failure if it showed that nothing can be requested.

    `is_recheck`: an operator requested the probe, so that missing rules need no second reading.
    """
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
    visit.robots = robots
    memory = visit.entry.memory
    if memory.is_disallowed_by_robots if robots is None else keeps_out(robots, _paths(visit)):
        visit.note_disallowed()
    elif robots is not None:
        needs_second = not is_recheck and needs_second_reading(robots, memory.disallowed_in_row)
        visit.learned |= {"is_disallowed_by_robots": needs_second, "disallowed_in_row": 0}
    return None


def _paths(visit: ProbeSession) -> list[str]:
    """Return the known paths of this host that a probe needs."""
    known = (visit.recall("interface_url"), visit.recall("health_url"))
    urls = [*visit.given.card_urls, *(URL(url, encoded=True) for url in known if url is not None)]
    return [url.raw_path_qs for url in urls if is_same_origin(url, visit.given.url)]
