"""Facts of a census for tests: a directory with a bit of everything."""

from lifesign.census.document import LatencySummary
from lifesign.census.report import CensusFacts, HostCount, LayerCount, RunFacts
from lifesign.domain.health.document import HealthStatus
from lifesign.domain.observation.result_sums import Layer
from lifesign.domain.observation.results import ResultClass as R
from lifesign.domain.targets.target import TargetKind

MADE_AT_S = 1_790_000_000.0
DAY_S = 86_400.0
EVIL = '<script>alert("x")</script>|*`\x1b[2J\u202e'
"""A name of a directory that attacks pages, reports and terminals."""


def facts(**changed: object) -> CensusFacts:
    """Return the facts of 100 targets, with the changes of a test."""
    known: dict[str, object] = {
        "name": "mixed",
        "made_at_s": MADE_AT_S,
        "since_s": MADE_AT_S - 300,
        "until_s": MADE_AT_S,
        "hosts": [
            HostCount("one.vercel.app", R.OK, "1.0", 3),
            HostCount("two.vercel.app", R.GATED, "0.3", 1),
            HostCount("three.vercel.app", R.REFUSED, None, 16),
            HostCount("a.example.co.uk", R.DNS_FAILURE, None, 60),
            HostCount("b.example.co.uk", R.OK, None, 1),
            HostCount("127.0.0.1", R.BLOCKED_ADDRESS, None, 4),
            HostCount("::1", R.BLOCKED_ADDRESS, None, 1),
            HostCount("new.example.org", None, None, 14),
        ],
        "directories": [("a list", R.OK, 3), ("a list", None, 14), (EVIL, R.REFUSED, 16)],
        "layers": [
            LayerCount("discovery", R.OK, 5),
            LayerCount("discovery", R.DNS_FAILURE, 60),
            LayerCount("discovery", R.NOT_MEASURED, 7),
            LayerCount("readiness", R.NOT_AN_AGENT, 5),
        ],
        "latencies": {"discovery": LatencySummary(count=5, p50_ms=233.0, p90_ms=812.5, p99_ms=1978.0)},
        "health": {HealthStatus.HEALTHY: 2, HealthStatus.DEGRADED: 1},
        "shown": [
            (TargetKind.A2A, [(Layer.DISCOVERY, R.OK), (Layer.TRANSPORT, R.TIMEOUT)], 1),
            (TargetKind.A2A, [(Layer.DISCOVERY, R.OK)], 2),
            (TargetKind.A2A, [(Layer.TRANSPORT, R.OK)], 1),
            (TargetKind.A2A, [(Layer.DISCOVERY, R.GATED)], 1),
        ],
        "gone": {"left": 2, "opted_out": 1},
        "runs": [
            RunFacts(
                began_at_s=MADE_AT_S - day * DAY_S,
                ended_at_s=MADE_AT_S - day * DAY_S + 60,
                counts={R.OK: 10 - day, R.REFUSED: 10 + day, None: 1},
            )
            for day in range(3)
        ],
    }
    return CensusFacts(**{**known, **changed})  # type: ignore[arg-type]
