"""The witnesses of one prober: canaries, and other targets that answer.

Failures wait here until a witness answers a request that was sent after them. In each network class,
witnesses get requests in rounds, one round for all waiting failures; the answers of other probes count too. A
failure whose round has no answer has no witness, and never counts later.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextvars import Context
from itertools import chain, islice, zip_longest
from typing import Any, Final, NamedTuple

from lifesign.domain.models.shards import MAX_CLASSES
from lifesign.domain.net.network_class import (
    PUBLIC_CLASSES,
    PUBLIC_IPV4,
    PUBLIC_IPV6,
    has_name,
)
from lifesign.domain.observation.witness_rule import (
    MAX_ASKED_TARGETS,
    Canary,
    WitnessAnswer,
    WitnessPolicy,
    is_canary_quorum,
)
from lifesign.prober.network.clock import Clock
from lifesign.prober.reachability.witness_requests import WitnessReply, WitnessRequester
from lifesign.prober.registry_exchange.ledger import Answered, WitnessNews, WitnessReport
from lifesign.prober.worker.waiting_failures import WaitingFailure, WaitingFailures

MAX_KNOWN_HOSTS: Final = 16
"""Maximum number of hosts per network class that are remembered as having answered last."""

_log = logging.getLogger("lifesign.prober")


class _KnownHost(NamedTuple):
    at_s: float
    """Time of its answer, since the epoch; 0 if it did not answer as a witness: others come before it."""
    url: str
    is_own: bool = False
    """Whether the host answered this worker."""


class _Class:
    """Known witnesses of one network class."""

    def __init__(self, name: str, canaries: Sequence[Canary]) -> None:
        self.name = name
        self.canaries = tuple(canaries)
        self.silent_canaries = {canary.url for canary in canaries}
        """Canaries that have never answered."""
        self.known: OrderedDict[str, _KnownHost] = OrderedDict()
        """Hosts that answered, the last one last."""
        self.handed_out: list[str] = []
        """URLs of other workers' targets, each for one request."""
        self.witnessed_at_s: float | None = None
        """Time of the last request that a witness answered, on the monotonic clock."""
        self.is_reached: bool | None = None
        """Whether a witness answered the last round of requests; None without a round."""
        self.has_failed = False
        """Whether canaries of an allowed network, or their names, gave no answer in the last round."""
        self.round_began_at_s: float | None = None
        self.round: asyncio.Task[None] | None = None
        self.attending: asyncio.Task[None] | None = None

    def takes(self, url: str) -> bool:
        """Return whether a target can be a witness in this class; in a public one, only over TLS."""
        return not self.canaries and (self.name not in PUBLIC_CLASSES or url.startswith("https:"))

    def note_unanswered(self, url: str) -> None:
        """Record that a target did not answer as a witness, so that others are requested first."""
        for host, known in self.known.items():
            if known.url == url:
                self.known[host] = _KnownHost(0.0, url)

    @property
    def own_answers(self) -> int:
        """Number of known hosts that answered this worker itself."""
        return sum(known.is_own for known in self.known.values())

    def candidates(self) -> list[str]:
        """Return the URLs to request as witnesses, first those that answered this worker last.

        One with TLS and one with a name are always among them: some failures need such a witness.
        Other URLs come from two sources in turn, as what one prober reported may be invented: targets that
        the registry handed out, and those of this worker's shards that answered another worker.
        """
        known = sorted(self.known.values(), reverse=True)
        answered = [each.url for each in known if each.is_own]
        kinds = [
            next(filter(is_of_kind, answered), None)
            for is_of_kind in (lambda url: url.startswith("https:"), has_name)
        ]
        own = [*dict.fromkeys(url for url in (*kinds, *answered) if url is not None)][:MAX_ASKED_TARGETS]
        reported = [each.url for each in known if not each.is_own]
        in_turn = chain.from_iterable(zip_longest(self.handed_out, reported))
        others = [url for url in in_turn if url is not None][: MAX_ASKED_TARGETS - len(own)]
        self.handed_out = [url for url in self.handed_out if url not in others]
        return own + others


class ReachabilityWitnesses:
    """Finds witnesses (targets or canaries that answer) for failures, to show that the network works.

    `witnessed` takes failures for which a witness answered, in the order in which they were recorded;
    `unwitnessed` those that have none, and why, for people.
    """

    def __init__(
        self,
        failures: WaitingFailures,
        asks: WitnessRequester | None,
        clock: Clock,
        *,
        class_names: Iterable[str],
        canaries: Mapping[str, Sequence[Canary]],
        policy: WitnessPolicy,
        interval_s: float,
        witnessed: Callable[[Sequence[WaitingFailure]], None],
        unwitnessed: Callable[[Sequence[WaitingFailure], str], None],
    ) -> None:
        """`class_names`: the classes of `networks.allow`; `asks`: None sends no requests to witnesses."""
        self.rounds = 0
        """Number of rounds."""
        self.has_read_targets = False
        """Set once the targets of all shards that are held were read."""
        self._failures = failures
        self._asks = asks
        self._clock = clock
        self._policy = policy
        self._interval_s = interval_s
        self._witnessed = witnessed
        self._unwitnessed = unwitnessed
        names = dict.fromkeys([*class_names, *canaries])
        self._classes = {name: _Class(name, canaries.get(name, ())) for name in names}
        self._news = WitnessNews()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def unreached_classes(self) -> tuple[str, ...]:
        """Network classes in which no witness answered when requested last."""
        return tuple(name for name, state in self._classes.items() if state.is_reached is False)

    # For the witness rule

    def class_for(self, network_class: str | None) -> str:
        """Return the network class whose witnesses count for a failure.

        None is for a name without a known class. It may be one of an allowed network whose canaries fail, or
        whose canaries' names do. If there is no such network, it counts as public.
        """
        if network_class is not None:
            return network_class
        if (
            failed := next((state for state in self._classes.values() if state.has_failed), None)
        ) is not None:
            return failed.name
        four, six = self._classes[PUBLIC_IPV4], self._classes[PUBLIC_IPV6]
        is_six_better = (six.canaries or six.known) and not (four.canaries or four.known)
        return PUBLIC_IPV6 if is_six_better else PUBLIC_IPV4

    def has_canaries(self, network_class: str) -> bool:
        """Return whether canaries are configured for a class."""
        state = self._classes.get(network_class)
        return state is not None and bool(state.canaries)

    def is_silent(self, network_class: str) -> bool:
        """Return whether a network class is in mass silence, as the registry reports."""
        return network_class in self._news.silent_classes

    def is_without_witness(self, network_class: str) -> bool:
        """Return whether no target can be a witness: the class is in mass silence, or not of this prober."""
        return self.is_silent(network_class) or network_class not in self._classes

    def confirmed_at_s(self, network_class: str) -> float | None:
        """Return when an operator last confirmed the outage of a network class; None if never."""
        return self._news.confirmed_at_s.get(network_class)

    # Received facts

    def add(self, failure: WaitingFailure) -> None:
        """Let a failure wait for a witness of its network class. The caller has checked for room."""
        self._failures.add(failure)
        state = self._classes[failure.network_class]
        if state.attending is None:
            state.attending = self._start(self._ask_for_failures(state))

    def note_answer(self, host: str, answered: Answered) -> None:
        """Record that a target answered this worker, so that it may be a witness for others."""
        state = self._classes.get(answered.network_class)
        if state is None or state.canaries:
            return
        state.known[host] = _KnownHost(self._clock.wall_s(), answered.url, is_own=True)
        state.known.move_to_end(host)
        if len(state.known) > MAX_KNOWN_HOSTS:
            state.known.popitem(last=False)
        state.witnessed_at_s, state.is_reached = answered.sent_at_s, True
        if state.attending is not None and not self.is_silent(state.name):
            answer = WitnessAnswer(
                network_class=state.name,
                sent_at_s=answered.sent_at_s,
                is_over_tls=answered.url.startswith("https:"),
            )
            self._release(answer)

    def note_known(self, host: str, network_class: str, url: str, alive_at_s: float) -> None:
        """Record that a target has answered another worker, or this one before its start."""
        state = self._classes.get(network_class)
        if state is None or not state.takes(url):
            return
        if len(state.known) >= MAX_KNOWN_HOSTS or host in state.known:
            return
        state.known[host] = _KnownHost(min(alive_at_s, self._clock.wall_s()), url)
        state.known.move_to_end(host, last=False)

    def note_failure(self, host: str, network_class: str) -> None:
        """Record that a host failed or must not be probed, so that it is no witness."""
        if (state := self._classes.get(network_class)) is not None:
            state.known.pop(host, None)

    def apply_witness_news(self, news: WitnessNews) -> None:
        """Store what an answer of the ledger says about witnesses."""
        became_silent = news.silent_classes - self._news.silent_classes
        self._news = news
        for network_class, url in news.handed_out:
            state = self._classes.get(network_class)
            if state is not None and state.takes(url):
                state.handed_out = [*state.handed_out, url][-MAX_ASKED_TARGETS:]
        for network_class in became_silent:
            _log.warning(
                "mass silence in network class %s: targets there that give no answer are not measured",
                network_class,
            )
            state = self._classes.get(network_class)
            if state is not None and not state.canaries:
                self._give_up(state, self._clock.monotonic_s(), "its network class is in mass silence")

    # Sent facts

    async def witness_report(self) -> WitnessReport:
        """Return what a claim reports about witnesses, and request some for classes without a recent one."""
        if self.has_read_targets:
            await asyncio.gather(*(self._find_out(state) for state in self._classes.values()))
        states = self._classes.values()
        wanted = {
            state.name: MAX_ASKED_TARGETS - state.own_answers
            for state in states
            if not state.canaries and state.own_answers < MAX_ASKED_TARGETS
        }
        reached = [state.name for state in states if state.is_reached]
        is_known = self.has_read_targets and any(state.is_reached is not None for state in states)
        return WitnessReport(
            interval_s=self._interval_s,
            reached_classes=reached[:MAX_CLASSES] if is_known else None,
            wanted=dict(islice(wanted.items(), MAX_CLASSES)),
        )

    async def ask_canaries(self) -> None:
        """Request all canaries once, at the start; log an error for each one that does not answer."""
        states = [state for state in self._classes.values() if state.canaries]
        await asyncio.gather(*(self._round(state) for state in states))

    async def close(self) -> None:
        """Cancel running requests. Failures that wait are dropped."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # Rounds

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        # Not in the context of the probe that failed: the addresses of witnesses would count for its turn,
        # also after it has ended.
        task = asyncio.create_task(work, context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _ask_for_failures(self, state: _Class) -> None:
        """Ask a witness of a class for the failures that wait, until none does."""
        try:
            while (first_s := self._failures.first_at_s(state.name)) is not None:
                # In a busy prober another target answers before that.
                due_s = first_s if state.canaries else first_s + self._policy.next_answer_s
                if state.round_began_at_s is not None:
                    due_s = max(due_s, state.round_began_at_s + self._policy.round_s)
                wait_s = due_s - self._clock.monotonic_s()
                if wait_s > 0:
                    await asyncio.sleep(wait_s)
                else:
                    await self._round(state)
        finally:
            state.attending = None

    async def _find_out(self, state: _Class) -> None:
        """Send a request to a witness of a class, unless one answered or was tried recently."""
        now_s = self._clock.monotonic_s()
        if state.witnessed_at_s is not None and now_s - state.witnessed_at_s <= self._interval_s:
            return
        began_at_s = state.round_began_at_s
        if state.round is None and began_at_s is not None and now_s - began_at_s < self._policy.round_s:
            return
        if state.canaries or state.known or state.handed_out:
            await self._round(state)

    async def _round(self, state: _Class) -> None:
        """Probe the witnesses of a class once; concurrent callers share the answers."""
        if state.round is None:
            state.round = self._start(self._ask_round(state))
        await asyncio.wait([state.round])

    async def _ask_round(self, state: _Class) -> None:
        began_at_s = self._clock.monotonic_s()
        try:
            urls = [canary.url for canary in state.canaries] or state.candidates()
            if not urls or self._asks is None:
                self._give_up(state, began_at_s, "no other target of its network class answers")
                return
            state.round_began_at_s = began_at_s
            self.rounds += 1
            replies = await self._ask_all(self._asks, urls, state)
            answer = _round_answer(state, urls, replies, began_at_s, self._policy)
            self._note_round(state, replies, is_reached=answer is not None)
            if state.canaries and state.name not in PUBLIC_CLASSES:
                has_names = any(has_name(canary.url) for canary in state.canaries)
                state.has_failed = answer is None or (has_names and not answer.is_looked_up)
            for url, reply in zip(urls, replies, strict=True):
                if reply.status is None:
                    state.note_unanswered(url)
            if answer is not None:
                state.witnessed_at_s = began_at_s
                self._release(answer)
            self._give_up(state, began_at_s, "no witness answered")
        finally:
            state.round = None

    async def _ask_all(
        self, asks: WitnessRequester, urls: Sequence[str], state: _Class
    ) -> Sequence[WitnessReply]:
        try:
            return await asks.ask(urls, state.name, self._policy.answer_s)
        except Exception:  # noqa: BLE001 - a defect of ours is no evidence against anybody
            _log.exception(
                "the witnesses of network class %s could not be asked, because of a defect in lifesign",
                state.name,
            )
            return [WitnessReply(reason="a defect of the prober") for _ in urls]

    def _note_round(self, state: _Class, replies: Sequence[WitnessReply], *, is_reached: bool) -> None:
        """Log the changes by a round."""
        is_first = state.is_reached is None
        for canary, reply in zip(state.canaries, replies, strict=False):
            if canary.is_answer(reply.status):
                if canary.url in state.silent_canaries and not is_first:
                    _log.warning("the canary %s answers again", canary.url)
                state.silent_canaries.discard(canary.url)
            elif is_first:
                why = reply.reason or f"HTTP {reply.status}"
                _log.error(
                    "the canary %s of network class %s does not answer: %s", canary.url, state.name, why
                )
        if is_reached != state.is_reached and not (is_first and is_reached):
            if is_reached:
                _log.warning("witnesses in network class %s answer again", state.name)
            else:
                _log.error(
                    "no witness in network class %s answers: failures of its targets are not measured",
                    state.name,
                )
        state.is_reached = is_reached

    def _release(self, answer: WitnessAnswer) -> None:
        if self.is_silent(answer.network_class) and not self.has_canaries(answer.network_class):
            return
        if released := self._failures.release(answer, self._clock.monotonic_s()):
            self._witnessed(released)

    def _give_up(self, state: _Class, until_s: float, why: str) -> None:
        if given_up := self._failures.give_up(state.name, until_s):
            self._unwitnessed(given_up, why)


def _round_answer(
    state: _Class,
    urls: Sequence[str],
    replies: Sequence[WitnessReply],
    began_at_s: float,
    policy: WitnessPolicy,
) -> WitnessAnswer | None:
    """Return the result of a round's replies; None if no witness answered."""
    if state.canaries:
        answers = {
            canary.url: reply
            for canary, reply in zip(state.canaries, replies, strict=True)
            if canary.is_answer(reply.status)
        }
        if not is_canary_quorum(len(answers), len(state.canaries)):
            return None
        # Name servers may fail for some zones only.
        names = sum(has_name(canary.url) for canary in state.canaries)
        is_looked_up = is_canary_quorum(sum(each.is_looked_up for each in answers.values()), names)
    else:
        answers = {url: reply for url, reply in zip(urls, replies, strict=True) if reply.status is not None}
        if not answers:
            return None
        is_looked_up = any(reply.is_looked_up for reply in answers.values())
    answered = answers.values()
    return WitnessAnswer(
        network_class=state.name,
        sent_at_s=began_at_s,
        is_looked_up=is_looked_up,
        confirms_clock=any(
            reply.clock_offset_s is not None and abs(reply.clock_offset_s) <= policy.max_clock_offset_s
            for reply in answered
        ),
        is_over_tls=any(url.startswith("https:") for url in answers),
    )
