"""Metrics endpoint (`GET /metrics`).

The database is counted at most every few seconds, and less often the longer that takes: scraping cannot slow
down the registry. While the database is unreachable, the other metrics remain, and one reports that fact.
"""

import asyncio
import logging
import shutil
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from starlette.requests import Request
from starlette.responses import Response

from lifesign.domain.access.permissions import Permission, require
from lifesign.domain.common.project import install_hint
from lifesign.errors import LifesignError
from lifesign.registry.events.archive_events import archive_directory
from lifesign.registry.request_handling.error_statuses import error_response
from lifesign.registry.request_handling.execution import OperationDispatcher, authenticate, headers_in
from lifesign.registry.request_handling.work_counts import WorkCounts
from lifesign.registry.settings import RegistrySettings
from lifesign.serving.error_body import problem
from lifesign.storage.engine.transaction import Database, Transaction
from lifesign.storage.errors import StoreUnavailable
from lifesign.storage.whole_database.totals import Totals, totals

if TYPE_CHECKING:
    from prometheus_client.core import Metric

METRICS_PATH: Final = "/metrics"
COUNT_AGAIN_SECONDS: Final = 5.0
"""Minimum age at which values of the database are counted again."""
PAUSE_RATIO: Final = 30.0
"""Pause after a count as a multiple of its duration: counting takes a thirtieth of one reader's time."""
MAX_ACCEPT_CHARACTERS: Final = 1_024
REMEMBER_SECONDS: Final = 300.0
"""While the database is unreachable, a client that was authenticated so recently is accepted."""
MAX_REMEMBERED: Final = 16
NOT_INSTALLED: Final = "prometheus-client is not installed"

_log = logging.getLogger("lifesign.registry")


class MetricsEndpoint:
    """Answers with the numbers of this server, in the form that the scraper prefers; one per process."""

    def __init__(
        self,
        dispatcher: OperationDispatcher,
        database: Database,
        settings: RegistrySettings,
        counts: WorkCounts,
        certificate_ends_s: float | None,
    ) -> None:
        self._dispatcher = dispatcher
        self._database = database
        self._settings = settings
        self._counts = counts
        self._certificate_ends_s = certificate_ends_s
        self._totals: Totals | None = None
        self._answers = False
        """Whether the database answered the last query."""
        self._can_be_counted = True
        self._counting: asyncio.Task[None] | None = None
        self._let_in_s: dict[bytes, float] = {}
        """Times at which digests were authenticated, the newest last."""
        self._count_again_s = 0.0
        """When, by the monotonic clock."""

    async def answer(self, request: Request) -> Response:
        """Return all metrics; they need the key of a reader, unless the settings open them to all."""
        try:
            await self._authorize(request)
            from prometheus_client.exposition import choose_encoder  # noqa: PLC0415 - may not be installed

            if self._answers:
                # Otherwise a scraper would wait twice for the database, and longer than its own timeout.
                await self._count()
        except ModuleNotFoundError:
            return problem(404, "not_found", NOT_INSTALLED, hint=install_hint("metrics"))
        except LifesignError as error:
            return error_response(error)
        encode, media_type = choose_encoder(request.headers.get("accept", "")[:MAX_ACCEPT_CHARACTERS])
        content = encode(_RegistryMetrics(self._families()))
        return Response(content, 200, {"Cache-Control": "no-store"}, media_type)

    async def _authorize(self, request: Request) -> None:
        """Raise UnknownKey, NotAllowed or TooManyRequests if the caller may not read the metrics.

        While the database is unreachable no key can be looked up, but the metrics have to report exactly
        that.
        """
        if self._settings.open_metrics:
            with suppress(StoreUnavailable):
                await self._ask(lambda _transaction: None)
            return
        digest = self._dispatcher.digest_of_caller(headers_in(request.scope))
        self._dispatcher.check_rate(digest)
        before_s = self._let_in_s.pop(digest, -REMEMBER_SECONDS)
        try:
            await self._ask(
                lambda transaction: require(authenticate(transaction, digest), Permission.READ_MONITOR)
            )
        except StoreUnavailable:
            if time.monotonic() - before_s > REMEMBER_SECONDS:
                raise
            self._let_in_s[digest] = before_s
        else:
            self._let_in_s[digest] = time.monotonic()
            if len(self._let_in_s) > MAX_REMEMBERED:
                del self._let_in_s[next(iter(self._let_in_s))]

    async def _ask(self, function: Callable[[Transaction], None]) -> None:
        """Read, and note whether the database answers."""
        self._answers = True
        try:
            await self._dispatcher.database.read(function)
        except StoreUnavailable:
            self._answers = False
            raise

    async def _count(self) -> None:
        """Count the database, unless that was done just now; concurrent requests share one count."""
        if self._counting is None and time.monotonic() >= self._count_again_s:
            self._counting = asyncio.create_task(self._counted())
        if self._counting is not None:
            await asyncio.shield(self._counting)

    async def _counted(self) -> None:
        began_s = time.monotonic()
        try:
            function = partial(totals, most_down=self._settings.metrics_agents)
            self._totals = await self._dispatcher.database.read(function)
            self._can_be_counted = True
        except StoreUnavailable:
            self._answers = False
        except Exception:  # noqa: BLE001 - there are other numbers
            self._can_be_counted = False
            _log.exception("the contents of the database could not be counted for /metrics")
        finally:
            now_s = time.monotonic()
            self._count_again_s = now_s + max(COUNT_AGAIN_SECONDS, PAUSE_RATIO * (now_s - began_s))
            self._counting = None

    def _families(self) -> "Iterable[Metric]":
        from lifesign.registry.metrics.metric_families import Surroundings, families  # noqa: PLC0415 - see above

        here = Surroundings(
            database_is_up=self._answers and self._can_be_counted,
            changes_fail=self._database.writes.failure is not None,
            disks=self._disks(),
            database_bytes=_size(self._file),
            certificate_ends_s=self._certificate_ends_s,
            policies=self._settings.policies,
        )
        return families(self._totals, self._counts.sums(), here)

    @property
    def _file(self) -> Path | None:
        url = self._database.url
        is_file = url.drivername == "sqlite" and url.database not in {None, "", ":memory:"}
        return Path(str(url.database)) if is_file else None

    def _disks(self) -> dict[str, int]:
        places = {"archive": archive_directory(self._database, self._settings)}
        if self._file is not None:
            places["database"] = self._file.parent
        free = {}
        for name, place in places.items():
            with suppress(OSError):
                # An archive's directory is made with its first file.
                free[name] = shutil.disk_usage(place if place.exists() else place.parent).free
        return free


class _RegistryMetrics:
    """Collector for prometheus-client's encoders."""

    def __init__(self, found: "Iterable[Metric]") -> None:
        self._found = found

    def collect(self) -> "Iterable[Metric]":
        return self._found


def _size(file: Path | None) -> int | None:
    if file is None:
        return None
    size = 0
    for part in (file, file.with_name(f"{file.name}-wal")):
        with suppress(OSError):
            size += part.stat().st_size
    return size
