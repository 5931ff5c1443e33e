"""Credentials of living probers: faulty ones, and those that only some of the probers have."""

from collections.abc import Sequence

from lifesign.domain.access.event_actor import KEY_ACTOR_PREFIX
from lifesign.domain.credentials.acceptance import FAULTS, CredentialState
from lifesign.domain.credentials.credential_watch import (
    CredentialChange,
    WatchedCredential,
    WorkerCredentialReport,
)
from lifesign.domain.credentials.missing_credentials import (
    MAX_MISSING,
    OtherCredential,
    missing_credentials,
)
from lifesign.domain.events.event import EventDraft
from lifesign.domain.events.event_type import EventType
from lifesign.domain.events.monitor_payloads import CredentialFaultChanged
from lifesign.domain.models.base import moment
from lifesign.domain.models.credentials import CredentialFaultShown, MissingCredential, missing_of
from lifesign.domain.probing.shard_eligibility import key_of
from lifesign.registry.status_changes.agent_status import MONITOR
from lifesign.storage.probing.probers import StoredProber

MAX_SHOWN = 100
"""Missing credentials of all probers together that the monitor shows."""


def missing_for(
    living: Sequence[StoredProber],
    holder: str,
    limit: int = MAX_MISSING,
    watched: Sequence[WatchedCredential] = (),
) -> list[MissingCredential]:
    """Return the origins and paths for which a prober lacks a credential that another living one has.

    If the prober's own credential has a fault, it lacks one only if that of another prober works: the others
    have not used theirs if no target of theirs needs it. A restarted prober does not know the state of its
    own: until it does, its credential has the fault that `watched` names.
    """
    key = key_of(holder).removeprefix(KEY_ACTOR_PREFIX)
    failed = {each.name for each in watched if each.key == key and each.is_lasting}
    others: dict[str, list[OtherCredential]] = {}
    of_holder = [each for prober in living if prober.holder == holder for each in prober.credentials]
    faulty = {
        each.scope.place
        for each in of_holder
        if each.state in FAULTS or (each.state is None and each.scope.name in failed)
    }
    own = [each.scope for each in of_holder if each.scope.place not in faulty]
    for prober in living:
        if prober.holder != holder and prober.credentials:
            others.setdefault(key_of(prober.holder), []).extend(
                OtherCredential(holder=prober.holder, scope=each.scope)
                for each in prober.credentials
                if each.state is CredentialState.WORKS
                or (each.state is None and each.scope.place not in faulty)
            )
    return missing_of(holder, missing_credentials(own, others, limit))


def all_missing(
    living: Sequence[StoredProber], watched: Sequence[WatchedCredential]
) -> list[MissingCredential]:
    """Return the credentials that a living prober lacks and another one has, by the lacking prober's name."""
    found: list[MissingCredential] = []
    for prober in sorted(living, key=lambda each: each.holder):
        if len(found) < MAX_SHOWN:
            found += missing_for(living, prober.holder, MAX_SHOWN - len(found), watched)
    return found


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
