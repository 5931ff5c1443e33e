"""In which order are targets told?

By host, then by URL, as people look for them and compare two nights: a registry has them in an order of its
own. Up to MAX_SORTED are held here; of more, sorted runs lie in files until they are merged.
"""

import asyncio
import gzip
import heapq
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import ExitStack
from itertools import islice
from tempfile import TemporaryFile
from typing import IO, Final, Self, Unpack

from agent_health.client.registry_targets import PagedTargets, TargetQuery, all_pages
from agent_health.target import host_of
from agent_health.target_record import TargetList, TargetSummary

MAX_SORTED: Final = 20_000
"""Targets in memory; some kilobytes each."""
MAX_RUNS: Final = 64
"""Files that are open at once."""
_FAST: Final = 1
"""Of gzip: a tenth of the room, for little time."""


async def pages_in_order(
    source: PagedTargets, *, page: int = 1000, most: int | None = None, **wanted: Unpack[TargetQuery]
) -> AsyncIterator[TargetList]:
    """Yield all that match by host and URL: up to MAX_SORTED as one page, more in pages of `page`.

    `most` is how many are wanted, None for all: where only some are of more than MAX_SORTED, they come as
    the registry has them, for nobody should wait until a million are read to see a hundred.
    """
    held: list[TargetSummary] = []
    total = 0
    with _Runs() as runs:
        async for found in all_pages(source, page=page, **wanted):
            total = total or found.total
            if most is not None and total > MAX_SORTED:
                yield found.model_copy(update={"total": total})
                continue
            held += found.targets
            if len(held) > MAX_SORTED:
                await asyncio.to_thread(runs.add, held)
                held = []
        if most is not None and total > MAX_SORTED:
            return
        if not runs.are_any:
            yield TargetList(targets=sorted(held, key=_place), total=total)
            return
        await asyncio.to_thread(runs.add, held)
        merged = runs.merged()
        while some := await asyncio.to_thread(lambda: list(islice(merged, page))):
            yield TargetList(targets=some, total=total)


class _Runs:
    """Targets in files, in order within each; the files go with the block."""

    def __init__(self) -> None:
        self._files: list[IO[bytes]] = []
        self._closing = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    @property
    def are_any(self) -> bool:
        return bool(self._files)

    def add(self, targets: Iterable[TargetSummary]) -> None:
        """Put these into a file of their own; if there are too many files, they become one before."""
        if len(self._files) == MAX_RUNS:
            merged = self._write(self.merged())
            self._closing.close()
            self._files = []
            self._keep(merged)
        self._keep(self._write(sorted(targets, key=_place)))

    def merged(self) -> Iterator[TargetSummary]:
        """Yield all in order; to be read to its end before anything is added."""
        return heapq.merge(*map(_read, self._files), key=_place)

    def _keep(self, file: IO[bytes]) -> None:
        self._files.append(self._closing.enter_context(file))

    @staticmethod
    def _write(targets: Iterable[TargetSummary]) -> IO[bytes]:
        file = TemporaryFile()  # noqa: SIM115 - it is closed with all others
        try:
            with gzip.open(file, "wb", compresslevel=_FAST) as packed:
                packed.writelines(
                    target.model_dump_json(exclude_none=True).encode() + b"\n" for target in targets
                )
        except BaseException:
            file.close()
            raise
        return file


def _read(file: IO[bytes]) -> Iterator[TargetSummary]:
    file.seek(0)
    with gzip.open(file, "rb") as packed:
        yield from map(TargetSummary.model_validate_json, packed)


def _place(target: TargetSummary) -> tuple[str, str]:
    return host_of(target.url), target.url
