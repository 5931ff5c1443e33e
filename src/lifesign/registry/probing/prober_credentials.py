"""Credentials of living probers: which prober lacks one that another prober has."""

from collections.abc import Sequence

from lifesign.domain.credentials.missing_credentials import (
    MAX_MISSING,
    OtherCredential,
    missing_credentials,
)
from lifesign.domain.models.credentials import MissingCredential, missing_of
from lifesign.domain.schedule.shard_eligibility import key_of
from lifesign.storage.probing.probers import StoredProber

MAX_SHOWN = 100
"""Missing credentials of all probers together that the monitor shows."""


def missing_for(
    living: Sequence[StoredProber], holder: str, limit: int = MAX_MISSING
) -> list[MissingCredential]:
    """Return the places for which a prober has no credential, and another living one has."""
    others: dict[str, list[OtherCredential]] = {}
    own = [scope for prober in living if prober.holder == holder for scope in prober.credentials]
    for prober in living:
        if prober.holder != holder and prober.credentials:
            others.setdefault(key_of(prober.holder), []).extend(
                OtherCredential(holder=prober.holder, scope=scope) for scope in prober.credentials
            )
    return missing_of(holder, missing_credentials(own, others, limit))


def all_missing(living: Sequence[StoredProber]) -> list[MissingCredential]:
    """Return which living probers lack a credential that another one has, in the order of their names."""
    found: list[MissingCredential] = []
    for prober in sorted(living, key=lambda each: each.holder):
        if len(found) < MAX_SHOWN:
            found += missing_for(living, prober.holder, MAX_SHOWN - len(found))
    return found
