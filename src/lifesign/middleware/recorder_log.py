"""Log messages of a recorder, with a limit to how often the same failure is logged."""

import logging

from lifesign.middleware.window_storage import RecorderClock

_log = logging.getLogger("lifesign")

_LOG_INTERVAL_NS = 60_000_000_000
_MAX_SHOWN_CHARS = 40


class RecorderLog:
    """Logs what the operator of one agent should know about its measurement."""

    def __init__(self, agent_id: str, clock: RecorderClock) -> None:
        self._agent_id = agent_id
        self._clock = clock
        self._due_ns: dict[str, int] = {}

    def failure(self, what: str) -> None:
        """Log the current exception; the same `what` at most once a minute."""
        now_ns = self._clock.monotonic_ns()
        if now_ns >= self._due_ns.get(what, 0):
            self._due_ns[what] = now_ns + _LOG_INTERVAL_NS
            _log.exception("lifesign: %s (this error is not logged again for a minute)", what)

    def compressed_answer(self, encoding: str) -> None:
        """Warn that answers cannot be inspected because they are compressed."""
        _log.warning(
            (
                "lifesign: %s: an answer was compressed (content-encoding %r) before the middleware "
                "saw it, and is counted as not_inspected. Put AgentHealthMiddleware inside the "
                "compression. This is logged once."
            ),
            self._agent_id,
            encoding[:_MAX_SHOWN_CHARS],
        )

    def removed_files(self) -> None:
        """Warn that the shared files were removed while this worker used them."""
        _log.warning(
            (
                "lifesign: %s: the files in the state directory were removed; the status is unknown "
                "until all workers have been restarted"
            ),
            self._agent_id,
        )
