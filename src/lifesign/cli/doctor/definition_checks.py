"""The examination of a probe definition: whether it can be read, with its lists, and its canaries answer."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lifesign.cli.doctor.check_result import CheckResult
from lifesign.domain.errors import InvalidFile
from lifesign.domain.text.counts import plural, pluralize
from lifesign.errors import InvalidValue, LifesignError

if TYPE_CHECKING:
    from lifesign.prober.definition.models import ProbeDefinition
    from lifesign.prober.reachability.witness_requests import WitnessReply


def of_a_definition(file: Path) -> Iterator[CheckResult]:
    """Check whether a probe definition is valid."""
    from lifesign.prober.definition.file import read_definition_file  # noqa: PLC0415 - another extra

    try:
        definition = read_definition_file(file)
    except InvalidFile as error:
        for fault in error.faults:
            yield CheckResult(
                "definition", "fault", f"{file}: {fault}", "probes/reference.yml has every setting"
            )
        return
    except LifesignError as error:
        advice = getattr(error, "hint", "") or "name an existing file"
        yield CheckResult("definition", "fault", str(error), advice)
        return
    import asyncio  # noqa: PLC0415 - takes 20 ms

    from lifesign.crawl.contact_rule import require_contact  # noqa: PLC0415 - another extra
    from lifesign.crawl.directory_import import inspect_lists  # noqa: PLC0415 - another extra

    try:
        asyncio.run(require_contact(definition))
    except InvalidValue as error:
        yield CheckResult("definition", "fault", f"{file}: {error}", "add contact to the definition")
        return
    unread = asyncio.run(inspect_lists(definition)).unread
    for name, why in unread.items():
        yield CheckResult(
            "definition", "fault", f"{file}: the list {name}: {why}", "correct the list, or its format"
        )
    if not unread:
        yield CheckResult("definition", "ok", f"{file}: {definition.name}")
    yield from _of_blocked_targets(file, definition)
    credentials = list(_of_the_credentials(file, definition))
    yield from credentials
    yield from _of_unused_credentials(file, definition)
    if all(each.verdict != "fault" for each in credentials):
        # A prober needs all secrets.
        yield from _of_the_canaries(file, definition)


def _of_blocked_targets(file: Path, definition: "ProbeDefinition") -> Iterator[CheckResult]:
    """Report targets whose address the prober refuses. The addresses of names are not resolved here."""
    from lifesign.domain.net.allowed_addresses import AddressRefused, vet_url  # noqa: PLC0415 - takes 20 ms
    from lifesign.domain.net.network_class import range_to_allow  # noqa: PLC0415
    from lifesign.domain.targets.target import host_of  # noqa: PLC0415

    allowed = definition.networks_allowed
    blocked = [url for url in definition.target_urls if isinstance(vet_url(url, allowed), AddressRefused)]
    if not blocked:
        return
    ranges = sorted({network for url in blocked if (network := range_to_allow(host_of(url)))})
    count = f"{pluralize(len(blocked), 'target')} {plural(len(blocked), 'is', 'are')} never contacted"
    yield CheckResult(
        "targets",
        "warning",
        f"{file}: {count} (blocked_address), such as {blocked[0]}",
        f"if these networks are your own, add {', '.join(ranges)} to networks.allow"
        if ranges
        else "remove the targets: no setting permits these addresses",
    )


def _of_the_credentials(file: Path, definition: "ProbeDefinition") -> Iterator[CheckResult]:
    """Read the secret of each credential, and show its name and place only."""
    # Another extra.
    from lifesign.prober.secrets.secret_reader import MISSING_SECRET_HINT, read_secrets  # noqa: PLC0415

    for credential in definition.credentials:
        warnings: list[str] = []
        place = f"{credential.origin}{credential.path}"
        try:
            secrets = read_secrets([credential], warnings.append)
        except InvalidValue as error:
            yield CheckResult("credentials", "fault", f"{file}: {error}", error.hint or MISSING_SECRET_HINT)
            continue
        for warning in warnings:
            yield CheckResult(
                "credentials", "warning", f"{file}: {warning}", "make the file readable by its owner only"
            )
        tls = secrets.tls.get(credential.name)
        certificate = None if tls is None else tls.certificate
        until = "" if certificate is None else f", certificate until {certificate.expires_at:%Y-%m-%d}"
        summary = f"{file}: {credential.name} ({credential.method}, {credential.source}{until}) for {place}"
        yield CheckResult("credentials", "ok", summary)


def _of_unused_credentials(file: Path, definition: "ProbeDefinition") -> Iterator[CheckResult]:
    """Name the credentials that no probe can send. The targets of directories are not known here."""
    # Another extra.
    from lifesign.prober.definition.unused_credentials import unused_credentials  # noqa: PLC0415

    for unused in unused_credentials(definition):
        yield CheckResult("credentials", "warning", f"{file}: {unused.text}", unused.hint)


def _of_the_canaries(file: Path, definition: "ProbeDefinition") -> Iterator[CheckResult]:
    """Ask each canary once, as a crawl does."""
    import asyncio  # noqa: PLC0415 - takes 20 ms

    canaries = definition.canaries_by_class
    if not canaries and definition.needs_no_witness:
        return
    if not canaries:
        advice = (
            "under canaries, name hosts that are always reachable: otherwise a network fault may look like "
            "dead agents"
        )
        yield CheckResult("canaries", "warning", f"{file} has no canaries", advice)
        return
    if definition.placeholders:
        summary = f"{file}: placeholders are left: {', '.join(definition.placeholders)}"
        yield CheckResult(
            "canaries", "warning", summary, "replace them by hosts of your own or of your provider"
        )
    try:
        replies = asyncio.run(_canary_replies(definition))
    except LifesignError as error:
        yield CheckResult("canaries", "fault", f"{file}: {error}", "probes/reference.yml has every setting")
        return
    for network_class, named in canaries.items():
        silent = [
            f"{canary.url} ({reply.reason or f'HTTP {reply.status}'})"
            for canary, reply in zip(named, replies[network_class], strict=True)
            if not canary.is_answer(reply.status)
        ]
        answering = len(named) - len(silent)
        count = f"{answering} of {len(named)} {plural(len(named), 'canary', 'canaries')}"
        summary = f"{file}: {count} of {network_class} {plural(answering, 'answers', 'answer')}"
        if silent:
            advice = "name other hosts, or check resolver.servers, firewalls and certificates"
            yield CheckResult("canaries", "fault", f"{summary}; not {', '.join(silent)}", advice)
        else:
            yield CheckResult("canaries", "ok", summary)


async def _canary_replies(definition: "ProbeDefinition") -> "Mapping[str, Sequence[WitnessReply]]":
    """Return the answer of each canary, by network class."""
    import asyncio  # noqa: PLC0415 - loaded by now

    from lifesign.crawl.prober_assembly import open_prober  # noqa: PLC0415 - another extra

    policy = definition.witnesses.policy(definition.cadence.interval_seconds)
    canaries = definition.canaries_by_class
    # Nothing is written: these requests leave no evidence.
    unkept = definition.model_copy(update={"evidence": type(definition.evidence)()})
    async with open_prober(unkept) as opened:
        requests = (
            opened.witnesses.ask([canary.url for canary in named], network_class, policy.answer_s)
            for network_class, named in canaries.items()
        )
        return dict(zip(canaries, await asyncio.gather(*requests), strict=True))
