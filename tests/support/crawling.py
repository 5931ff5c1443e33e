"""Observes a crawl in the test's own process."""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

from tests.support.servers import PATIENCE_SECONDS

from lifesign.crawl.progress_display import CrawlState, ImportStep
from lifesign.serving.log_output import LogFormat


class Shown:
    """A progress that stores its output."""

    log_format = LogFormat.CONSOLE

    def __init__(self) -> None:
        self.state = CrawlState(probed=0, total=None)
        self.lines: list[str] = []
        self.steps: list[ImportStep] = []
        self._news = asyncio.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def show(self, state: CrawlState) -> None:
        self.state = state
        self._news.set()

    def show_import(self, step: ImportStep) -> None:
        self.steps.append(step)
        self._news.set()

    def log(self, line: str) -> None:
        self.print_line(line)

    def print_line(self, text: str) -> None:
        self.lines.append(text)
        self._news.set()

    async def until(self, is_so: Callable[[CrawlState], bool]) -> None:
        """Wait until the crawl has come so far."""
        await self._until(lambda: is_so(self.state))

    async def until_line(self, text: str) -> None:
        """Wait until a line begins so."""
        await self._until(lambda: any(line.startswith(text) for line in self.lines))

    async def _until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not is_so():
                self._news.clear()
                await self._news.wait()
