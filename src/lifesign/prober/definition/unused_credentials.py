"""Credentials of a definition that no probe of its targets can send."""

from collections.abc import Iterator, Sequence
from typing import Final

from lifesign.domain.common.fast_dataclass import fast_dataclass
from lifesign.domain.targets.target import is_on_origin_of, origin_of
from lifesign.prober.definition.credentials import CredentialSettings
from lifesign.prober.definition.models import ProbeDefinition

_SPELLING: Final = "write the origin as in the target's URL (localhost and 127.0.0.1 differ)"


@fast_dataclass()
class UnusedCredential:
    """A credential that is never sent, with what to do about it."""

    name: str
    text: str
    hint: str


def unused_credentials(definition: ProbeDefinition) -> Iterator[UnusedCredential]:
    """Yield the credentials that no probe can send."""
    hint = f"{_SPELLING}, or add the target's origin to card_origins"
    if definition.directories:
        hint = f"for targets of directories, set for_all_targets: true; else {hint}"
    for credential in definition.credentials:
        if credential.for_all_targets:
            continue
        if not any(credential.scope.is_for_target(origin_of(url)) for url in definition.target_urls):
            yield UnusedCredential(
                credential.name,
                f"the credential {credential.name} is never sent: no target of the definition has the origin "
                f"{credential.origin}",
                hint,
            )


def login_hint(target: str, asked_by: str, credentials: Sequence[CredentialSettings]) -> str | None:
    """Return why none of these credentials was sent to a login; None if that is unknown, or there is none.

    `asked_by`: the origin that asked for credentials, which may be another one than that of the target.
    """
    if not credentials:
        return None
    of_origin = [each for each in credentials if is_on_origin_of(asked_by, each.origin)]
    if not of_origin:
        return f"no credential has the origin {asked_by}: {_SPELLING}"
    if is_on_origin_of(target, asked_by) or of_origin[0].scope.is_for_target(target):
        return None
    return f"add {origin_of(target)} to card_origins of the credential {of_origin[0].name}"
