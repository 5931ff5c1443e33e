"""Credentials of probers: faulty ones, and those that only some of the probers have."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf

from lifesign.domain.access.event_actor import KEY_ACTOR_PREFIX
from lifesign.domain.credentials.acceptance import FAULTS, CredentialState
from lifesign.domain.credentials.credential_watch import (
    CredentialChange,
    CredentialId,
    WatchedCredential,
    WorkerCredentialReport,
)
from lifesign.domain.credentials.missing_credentials import (
    MAX_MISSING,
    OtherCredential,
    may_work,
    missing_credentials,
)
from lifesign.domain.events.event import EventDraft
from lifesign.domain.events.event_type import EventType
from lifesign.domain.events.monitor_payloads import CredentialFaultChanged
from lifesign.domain.models.base import moment
from lifesign.domain.models.credentials import (
    CredentialFaultShown,
    CredentialPlace,
    MissingCredential,
    missing_of,
)
from lifesign.domain.probing.shard_eligibility import key_of
from lifesign.registry.status_changes.agent_status import MONITOR
from lifesign.storage.probing.probers import StoredCredential, StoredProber

MAX_SHOWN = 100
"""Missing credentials of all probers together that the monitor shows."""


@dataclass(frozen=True, kw_only=True)
class CredentialFacts:
    """What the registry knows of the credentials of all probers."""

    living: Sequence[StoredProber]
    ended: Sequence[StoredProber]
    """Workers that ended a short time ago: they may restart."""
    watched: Sequence[WatchedCredential] = ()
    now_s: float

    @cached_property
    def fault_begins_s(self) -> Mapping[CredentialId, float]:
        """Begin of each known fault, by key and name of the credential."""
        begins_s = {(each.key, each.name): each.since_s for each in self.watched if each.is_lasting}
        for prober in self.living:
            for each in prober.credentials:
                if each.state in FAULTS:
                    since_s = self.now_s if each.since_s is None else each.since_s
                    begins_s.setdefault(_id(prober, each), since_s)
        return begins_s


class _Comparison:
    """The credentials of one worker, compared with those of all others."""

    def __init__(self, facts: CredentialFacts, holder: str) -> None:
        self._facts = facts
        self._holder = holder
        self._faults_s = facts.fault_begins_s
        own = [
            (prober, each)
            for prober in facts.living
            if prober.holder == holder
            for each in prober.credentials
        ]
        self._own = [each for _, each in own]
        self._best_s: dict[tuple[str, str], float] = {}
        """Last time at which the own credential worked before its present fault, by its place."""
        self.faulty: set[tuple[str, str]] = set()
        """Places of the own credentials with a fault."""
        for prober, each in own:
            place = each.scope.place
            worked_at_s = -inf if each.worked_at_s is None else each.worked_at_s
            self._best_s[place] = min(worked_at_s, self._faults_s.get(_id(prober, each), inf))
            # A restarted prober does not know the state of its own.
            if each.state in FAULTS or (each.state is None and _id(prober, each) in self._faults_s):
                self.faulty.add(place)

    def missing(self, limit: int) -> list[MissingCredential]:
        """Return the places without a credential, and those where another one may work better."""
        own = [each.scope for each in self._own if each.scope.place not in self.faulty]
        others = self._others(
            lambda prober, each: each.scope.place not in self.faulty or self._may_work(prober, each)
        )
        return missing_of(self._holder, missing_credentials(own, others, limit))

    def working(self, limit: int) -> list[MissingCredential]:
        """Return the places where the own credential has no known fault, and another one worked later."""
        places = self._best_s.keys() - self.faulty
        others = self._others(
            lambda prober, each: each.scope.place in places and self._may_work(prober, each)
        )
        return missing_of(self._holder, missing_credentials((), others, limit))

    def _others(
        self, is_wanted: Callable[[StoredProber, StoredCredential], bool]
    ) -> Mapping[str, Sequence[OtherCredential]]:
        """Return the wanted ones of the others' credentials without a fault, by prober key."""
        others: dict[str, list[OtherCredential]] = {}
        for prober in (*self._facts.living, *self._facts.ended):
            if prober.holder != self._holder:
                others.setdefault(key_of(prober.holder), []).extend(
                    OtherCredential(holder=prober.holder, scope=each.scope)
                    for each in prober.credentials
                    if each.state not in FAULTS and is_wanted(prober, each)
                )
        return others

    def _may_work(self, prober: StoredProber, other: StoredCredential) -> bool:
        if other.state is None and _id(prober, other) in self._faults_s:
            return False
        # A prober that lost the target that refused the credential does not report the fault any more.
        refused_at_s = -inf if other.refused_at_s is None else other.refused_at_s
        best_s = max(self._best_s[other.scope.place], refused_at_s)
        return may_work(other.state, other.worked_at_s, best_s, self._facts.now_s)


def missing_for(facts: CredentialFacts, holder: str, limit: int = MAX_MISSING) -> list[MissingCredential]:
    """Return the origins and paths for which a prober lacks a working credential that another one has."""
    return _Comparison(facts, holder).missing(limit)


def working_for(facts: CredentialFacts, holder: str) -> list[MissingCredential]:
    """Return where a prober's credential has no known fault, but that of another prober worked later.

    If a server refuses the prober's own, it may accept the other one.
    """
    return _Comparison(facts, holder).working(MAX_MISSING)


def all_missing(facts: CredentialFacts) -> list[MissingCredential]:
    """Return the credentials that a living prober lacks and another one has, by the lacking prober's name."""
    found: list[MissingCredential] = []
    for prober in sorted(facts.living, key=lambda each: each.holder):
        if len(found) < MAX_SHOWN:
            found += missing_for(facts, prober.holder, MAX_SHOWN - len(found))
    return found


def credentials_of_claim(
    places: Sequence[CredentialPlace], known: Sequence[StoredProber], now_s: float
) -> tuple[StoredCredential, ...]:
    """Return the credentials of a worker's claim as the registry stores them.

    `known`: the former row of the worker, and workers of its key that ended. They are the same prober before
    a restart, so that the times of their answers are those of the new worker's.
    """
    former: dict[tuple[str, tuple[str, str]], list[StoredCredential]] = {}
    for prober in known:
        for each in prober.credentials:
            former.setdefault((each.scope.name, each.scope.place), []).append(each)
    return tuple(_stored(place, former.get((place.name, place.scope.place), ()), now_s) for place in places)


def _stored(place: CredentialPlace, former: Sequence[StoredCredential], now_s: float) -> StoredCredential:
    worked = [each.worked_at_s for each in former if each.worked_at_s is not None]
    refused = [each.refused_at_s for each in former if each.refused_at_s is not None]
    if place.worked_seconds is not None or place.state is CredentialState.WORKS:
        worked.append(now_s - (place.worked_seconds or 0.0))
    if place.state in FAULTS:
        refused.append(now_s)
    return StoredCredential(
        scope=place.scope,
        state=place.state,
        since_s=None if place.fault_seconds is None else now_s - place.fault_seconds,
        detail=place.detail,
        worked_at_s=max(worked, default=None),
        refused_at_s=max(refused, default=None),
    )


def _id(prober: StoredProber, credential: StoredCredential) -> CredentialId:
    return key_of(prober.holder).removeprefix(KEY_ACTOR_PREFIX), credential.scope.name


def credential_reports(living: Sequence[StoredProber]) -> list[WorkerCredentialReport]:
    """Return the credentials of living probers, as each worker reports them."""
    return [
        WorkerCredentialReport(
            key=key_of(prober.holder).removeprefix(KEY_ACTOR_PREFIX),
            name=each.scope.name,
            origin=each.scope.origin,
            path=each.scope.path,
            state=each.state,
            since_s=each.since_s,
            detail=each.detail,
        )
        for prober in living
        for each in prober.credentials
    ]


def credential_changed(change: CredentialChange) -> EventDraft:
    """Return the event about a fault of a credential that began or ended."""
    each = change.credential
    payload = CredentialFaultChanged(
        key_id=each.key,
        credential=each.name,
        origin=each.origin,
        fault=each.state,
        detail=each.detail,
        since=moment(each.since_s),
        end=change.end,
    )
    is_new = change.end is None
    kind = EventType.PROBER_CREDENTIAL_FAILED if is_new else EventType.PROBER_CREDENTIAL_FAULT_ENDED
    return EventDraft(type=kind, actor=MONITOR, payload=payload)


def shown_faults(watched: Sequence[WatchedCredential]) -> list[CredentialFaultShown]:
    """Return the faults of credentials that have lasted long enough to be shown."""
    return [
        CredentialFaultShown(
            key_id=each.key,
            name=each.name,
            origin=each.origin,
            path=each.path,
            fault=each.state,
            detail=each.detail,
            since=moment(each.since_s),
        )
        for each in watched
        if each.is_lasting
    ]
