"""Does the target's host let us ask it at all, by its robots.txt?

It is read first, and about once a day. Whoever cannot be reached for it cannot be reached: that is then what
the probe saw, for nobody is shown as one who opted out because it is down. Whoever takes the request for it
and gives no answer has said nothing by that, and is asked: it has one request's time, a third of a visit's.
"""

from yarl import URL

from lifesign.client.candidate_urls import place_under
from lifesign.domain.observation.results import LayerResult
from lifesign.domain.schedule.cadence import wants_robots
from lifesign.prober.probe.robots import MAX_ROBOTS_BYTES, ROBOTS_ACCEPT, ROBOTS_PATH, keeps_out, rules_in
from lifesign.prober.probe.session import ProbeSession, not_measured


async def check_robots_rules(visit: ProbeSession) -> LayerResult | None:
    """Return why nothing else is asked of the target; None if it may be asked."""
    memory = visit.entry.memory
    if wants_robots(visit.entry.subject_id, memory, visit.at_s):
        failure = await _read(visit)
        if failure is not None:
            return failure
    if visit.recall("is_disallowed_by_robots"):
        return not_measured("its robots.txt keeps us out")
    return None


async def _read(visit: ProbeSession) -> LayerResult | None:
    """Read robots.txt; return the failure if that showed that nobody can be asked."""
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
        return not_measured("no time was left beside its robots.txt")
    if not visit.may_ask(place):
        return visit.layer(fetched)
    robots = rules_in(fetched)
    visit.learned["robots_read_at_s"] = visit.at_s
    if robots is not None:
        visit.robots = robots
        visit.learned["is_disallowed_by_robots"] = keeps_out(robots, _paths(visit))
    return None


def _paths(visit: ProbeSession) -> list[str]:
    """Return the paths of this host that a probe needs, as far as they are known."""
    known = (visit.recall("interface_url"), visit.recall("health_url"))
    urls = [*visit.given.card_urls, *(URL(url, encoded=True) for url in known if url is not None)]
    origin = visit.given.url.origin()
    return [url.raw_path_qs for url in urls if url.origin() == origin]
