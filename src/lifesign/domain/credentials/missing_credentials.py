"""Missing credentials: places for which another prober has a credential, and this one has none that works.

Only names, places and the times of answers are compared. No prober ever learns a secret of another one.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, zip_longest
from typing import Final

from lifesign.domain.common.fast_dataclass import fast_dataclass
from lifesign.domain.credentials.acceptance import CredentialState
from lifesign.domain.credentials.request_scope import CredentialScope, scope_for
from lifesign.domain.targets.target import is_on_origin_of

MAX_MISSING: Final = 1_000
"""Places and origins of targets in the answer to one claim."""
GONE_SECONDS: Final = 900.0
"""Time for which the credentials of a prober count after its end: it may restart."""
MAX_IDLE_SECONDS: Final = 86_400.0
"""Time for which a credential counts as one that works after the last answer that accepted it."""


@fast_dataclass(kw_only=True)
class OtherCredential:
    """A credential that another prober has, and for which targets this prober lacks it."""

    holder: str
    """Prober that has it: its key, a slash, and the worker's name."""
    scope: CredentialScope
    target_origins: tuple[str, ...] = ()
    """Origins of the targets for which it is missing; none: those of the scope."""

    def is_for_target(self, target: str) -> bool:
        """Return whether probes of this target would need the credential."""
        return any(is_on_origin_of(target, each) for each in self.target_origins or self.scope.target_origins)


def lacking_place(origin: str, path: str, target_origins: Sequence[str]) -> str:
    """Return in words for which URLs a credential is missing.

    If it is there, but its `card_origins` lack the origins of some targets, these origins are named too.
    """
    place = f"{origin}{'' if path == '/' else path}"
    if not target_origins or origin in target_origins:
        return place
    return f"{place} that permits {', '.join(target_origins)} (card_origins)"


def missing_credentials(
    own: Iterable[CredentialScope],
    others: Mapping[str, Sequence[OtherCredential]],
    limit: int = MAX_MISSING,
) -> list[OtherCredential]:
    """Return the credentials of other probers for places where this prober has none, each place once.

    A prober also lacks a credential for the targets of an origin that only the `card_origins` of another
    prober contain. `others` has the credentials by prober key. The keys take turns, so that one key with many
    places does not push out those of the others. `limit` counts the origins of all places.
    """
    covered: dict[tuple[str, str], set[str]] = {}
    for scope in own:
        covered.setdefault(scope.place, set()).update(scope.target_origins)
    found: dict[tuple[str, str], OtherCredential] = {}
    for each in chain.from_iterable(zip_longest(*(others[key] for key in sorted(others)))):
        if each is None:
            continue
        place = each.scope.place
        known = covered.setdefault(place, set())
        lacking = tuple(origin for origin in each.scope.target_origins if origin not in known)[:limit]
        if lacking:
            first = found.get(place, each)
            found[place] = replace(first, target_origins=(*first.target_origins, *lacking))
            known.update(lacking)
            limit -= len(lacking)
    return list(found.values())


def may_work(state: CredentialState | None, worked_at_s: float | None, best_s: float, now_s: float) -> bool:
    """Return whether a server may accept another prober's credential although it refuses this prober's.

    `state` and `worked_at_s` are those of the other credential, which has no known fault. `best_s`: last time
    at which this prober's credential worked, or minus infinity. The credential that worked last decides: if
    the refused one worked last, the provider may have revoked both.
    """
    if worked_at_s is None or worked_at_s <= best_s:
        return False
    return state is CredentialState.WORKS or now_s - worked_at_s < MAX_IDLE_SECONDS


def credential_of_other(
    own: Iterable[CredentialScope], missing: Sequence[OtherCredential], url: str, target: str
) -> OtherCredential | None:
    """Return the credential with which another prober would request a URL, if ours fits less well.

    `target` is the URL of the target whose probe sends the request. The credential is the one with the
    longest path, as `scope_for` chooses; at the same place, ours is missing.
    """
    best = scope_for((each.scope for each in missing if each.is_for_target(target)), url)
    if best is None:
        return None
    ours = scope_for(own, url)
    if ours is not None and len(ours.place[1]) > len(best.place[1]):
        return None
    return next(each for each in missing if each.scope is best)
