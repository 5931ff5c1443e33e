"""Removal of secrets from the answers of each origin: those that the origin may have received.

What removes them is built at its first use after a change of a secret: that takes up to 1 ms for each secret,
and most tokens change nothing for the other origins.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Final
from weakref import WeakValueDictionary

from yarl import URL

from lifesign.domain.credentials.secret import NO_SECRETS, Scrubber, united
from lifesign.domain.targets.target import origin_of

MAX_ORIGINS: Final = 4_096
"""Maximum number of spellings of origins, and of sets of origins, whose scrubber is cached."""

SecretsNow = Callable[[], Iterable[str]]
"""Returns present and former secrets."""


class OriginScrubbers:
    """The scrubbers of all origins that may have received secrets."""

    def __init__(self, secrets: Mapping[str, Iterable[SecretsNow]]) -> None:
        """`secrets`: those of each origin, which must be spelled as `origin_of` returns it."""
        self._secrets = secrets
        self._newest: dict[str, Scrubber] = {}
        """By origin."""
        # Origins with the same secrets share one: its tables stay in the processor's cache.
        self._by_secrets: WeakValueDictionary[frozenset[str], Scrubber] = WeakValueDictionary()
        self._united: dict[frozenset[Scrubber], Scrubber] = {}
        # Determining an origin takes longer than finding its scrubber.
        self._at = lru_cache(maxsize=MAX_ORIGINS)(self._find)

    def note_change(self) -> None:
        """Note that secrets have changed: each origin is examined again when it is used."""
        self._at.cache_clear()

    def of(self, *urls: URL) -> Scrubber:
        """Return what removes the secrets that the origins of these URLs may have received."""
        # Nearly all probes have one origin, or origins with the same secrets.
        first = self._at(urls[0].scheme, urls[0].raw_authority)
        found = {first}
        for url in urls[1:]:
            other = self._at(url.scheme, url.raw_authority)
            if other is not first:
                found.add(other)
        return first if len(found) == 1 else self._united_of(frozenset(found))

    def _find(self, scheme: str, authority: str) -> Scrubber:
        origin = origin_of(f"{scheme}://{authority}")
        holders = self._secrets.get(origin)
        if holders is None:
            return NO_SECRETS
        secrets = frozenset(secret for each in holders for secret in each())
        former = self._newest.get(origin)
        if former is not None and former.secrets == secrets:
            return former
        scrubber = self._by_secrets.get(secrets)
        if scrubber is None:
            scrubber = self._by_secrets[secrets] = Scrubber(secrets)
        self._newest[origin] = scrubber
        self._united = {key: value for key, value in self._united.items() if former not in key}
        return scrubber

    def _united_of(self, scrubbers: frozenset[Scrubber]) -> Scrubber:
        found = self._united.get(scrubbers)
        if found is None:
            if len(self._united) >= MAX_ORIGINS:
                self._united.clear()
            found = self._united[scrubbers] = united(scrubbers)
        return found
