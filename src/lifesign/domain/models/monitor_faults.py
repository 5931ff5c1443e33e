"""Faults of the monitoring as texts, for `lifesign doctor` and the dashboard's overview."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from lifesign.domain.credentials.acceptance import CredentialState
from lifesign.domain.credentials.advice import fault_advice
from lifesign.domain.credentials.missing_credentials import lacking_place
from lifesign.domain.models.monitor import LostEvidence, MonitorRecord, TrackRecord
from lifesign.domain.observation.evidence_age import REASON_WORDS
from lifesign.domain.text.counts import plural, pluralize
from lifesign.domain.text.times import utc_text


class MonitorFault(NamedTuple):
    """One fault of the monitoring, and what an operator can do about it."""

    text: str
    hint: str


def suspension_text(track: TrackRecord) -> str:
    """Return in words why verdicts by silence are suspended for one kind of monitoring."""
    silent = f"{track.exits:,} {plural(track.exits, 'agent is', 'agents are')} silent"
    if track.unwitnessed:
        return f"{silent}, and no request of any agent has arrived since"
    return f"{silent}, more than the {track.limit:,} that are accepted at once"


def lost_evidence_text(lost: LostEvidence) -> str:
    """Return in words how many agents have no current evidence, and why."""
    reasons = "; ".join(f"{REASON_WORDS[reason]} ({count:,})" for reason, count in lost.reasons.items())
    agents = pluralize(lost.agents, "living agent")
    return f"no evidence about {agents} since {utc_text(lost.since, 'seconds')}: {reasons}"


def silent_class_faults(monitor: MonitorRecord) -> Iterator[MonitorFault]:
    """Yield a fault for each network class in mass silence (most of its addresses fell silent together)."""
    for name, since in monitor.silent_classes.items():
        began = f"mass silence in {name} since {utc_text(since, 'seconds')}"
        text = (
            f"{began}: targets there that give no answer are not measured (no_witness); HTTP errors of "
            "their hosts still count"
        )
        hint = "configure canaries there"
        confirmed_at = monitor.confirmed_classes.get(name)
        if confirmed_at is not None:
            confirmed = utc_text(confirmed_at, "seconds")
            text += (
                f"; failures of targets that last answered before the confirmation of {confirmed} count too"
            )
        if confirmed_at is None or confirmed_at < since:
            hint += f"; if its hosts are really down, run: lifesign monitor confirm --class {name}"
        yield MonitorFault(text, hint)


def unreached_target_faults(monitor: MonitorRecord) -> Iterator[MonitorFault]:
    """Yield a fault for each prober whose `networks.allow` excludes targets that answered earlier."""
    for each in monitor.disallowed_targets:
        targets = pluralize(each.targets, "target")
        reached = "" if each.reached_by is None else f"; prober {each.reached_by} reaches that network"
        yield MonitorFault(
            f"prober {each.holder} does not probe {targets} that answered earlier (not_allowed): its "
            f"definition does not allow network class {each.network_class}{reached}",
            "configure the same networks.allow in the definitions of all probers of this registry",
        )


def _missing_credential_faults(monitor: MonitorRecord) -> Iterator[MonitorFault]:
    """Yield which probers lack a credential that another one has."""
    for each in monitor.missing_credentials:
        place = lacking_place(each.origin, each.path, each.target_origins)
        yield MonitorFault(
            f"prober {each.holder} has no working credential for {place}, so it measures nothing behind a "
            f"login there (no_credential); prober {each.held_by} has the credential {each.name}",
            "configure the same credentials in the definitions of all probers of this registry",
        )


_FAULT_TEXTS: Final[Mapping[CredentialState, str]] = MappingProxyType({
    CredentialState.CREDENTIALS_REJECTED: "is rejected",
    CredentialState.TOKEN_ERROR: "gets no token",
})  # fmt: skip


def credential_faults(monitor: MonitorRecord) -> Iterator[MonitorFault]:
    """Yield a fault for each credential that does not work, or that only some probers have."""
    for each in monitor.credential_faults:
        advice = fault_advice(each.fault, each.detail).replace("NAME", each.name)
        yield MonitorFault(
            f"the credential {each.name} for {each.origin}, of the prober with key {each.key_id}, "
            f"{_FAULT_TEXTS[each.fault]} since {utc_text(each.since, 'seconds')} "
            f"({each.fault}{'' if each.detail is None else f', {each.detail}'}): what is behind the login "
            "there is unknown",
            f"{advice}; to test the credential, run: lifesign credentials test {each.name} --definition FILE",
        )
    yield from _missing_credential_faults(monitor)
