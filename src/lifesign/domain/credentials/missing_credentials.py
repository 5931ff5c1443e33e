"""Missing credentials: places for which another living prober has a credential, and this one has none.

Only names and places are compared. No prober ever learns a secret of another one.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, zip_longest
from typing import Final

from lifesign.domain.common.fast_dataclass import fast_dataclass
from lifesign.domain.credentials.request_scope import CredentialScope, scope_for

MAX_MISSING: Final = 1_000
"""Places in the answer to one claim."""


@fast_dataclass(kw_only=True)
class OtherCredential:
    """A credential of another prober."""

    holder: str
    """Prober that has it: its key, a slash, and the worker's name."""
    scope: CredentialScope


def missing_credentials(
    own: Iterable[CredentialScope],
    others: Mapping[str, Sequence[OtherCredential]],
    limit: int = MAX_MISSING,
) -> list[OtherCredential]:
    """Return the places for which other probers have a credential and this prober has none, each once.

    `others` has them by prober key. The keys take turns, so that one key with many places does not push out
    those of the others.
    """
    covered = {scope.place for scope in own}
    found: dict[tuple[str, str], OtherCredential] = {}
    for each in chain.from_iterable(zip_longest(*(others[key] for key in sorted(others)))):
        if len(found) == limit:
            break
        if each is not None and each.scope.place not in covered:
            found.setdefault(each.scope.place, each)
    return list(found.values())


def credential_of_other(
    own: Iterable[CredentialScope], missing: Sequence[OtherCredential], url: str
) -> OtherCredential | None:
    """Return the credential that another prober would send to a URL in place of ours; None if there is none.

    That is the one with the longest path, as `scope_for` chooses; at the same place, ours is missing.
    """
    best = scope_for((each.scope for each in missing), url)
    if best is None:
        return None
    ours = scope_for(own, url)
    if ours is not None and len(ours.place[1]) > len(best.place[1]):
        return None
    return next(each for each in missing if each.scope is best)
