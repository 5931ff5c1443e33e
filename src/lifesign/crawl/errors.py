"""Errors of the crawl application."""

from lifesign.errors import LifesignError


class CrawlStopped(LifesignError):
    """A process of a crawl died several times in a row, soon after its start."""

    def __init__(self, worker: str, deaths: int) -> None:
        super().__init__(f"{worker} died {deaths} times in a row, each time soon after its start")
        self.worker = worker
        self.deaths = deaths
