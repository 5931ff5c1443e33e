"""The answer to a request, or why there is none."""

import json
from dataclasses import field, replace
from datetime import datetime
from typing import Final

from yarl import URL

from lifesign.domain.common.fast_dataclass import fast_dataclass
from lifesign.domain.credentials.secret import NO_SECRETS, SEPARATOR, Scrubber
from lifesign.domain.net.allowed_addresses import Address
from lifesign.domain.observation.results import Phases, ResultClass
from lifesign.http_client.answer import Answer, head_without_secrets, in_ms
from lifesign.http_client.failures import certificate_alert, classify_failure
from lifesign.prober.network.connection import HttpConnection
from lifesign.prober.network.connector import Unreached
from lifesign.prober.secrets.client_tls import ClientTls
from lifesign.prober.secrets.credential_store import Credential

UNSEARCHED: Final = "the answer has too many escapes to be searched for secrets of the prober"


@fast_dataclass(kw_only=True)
class Fetched(Answer):
    """Result of a request, with its answer."""

    etag: str | None = None
    """ETag as sent; None if it is too long for an observation."""
    last_modified: str | None = None
    """`Last-Modified`, as sent; None if it is too long to be a time."""
    is_part: bool = False
    """Whether `body` is only the beginning of the whole body."""
    is_body_unread: bool = False
    """Whether the body was not read, or dropped: `body` is empty."""
    is_unchanged: bool = False
    """Whether the server answered that nothing changed since `etag` or `modified_since` (304)."""
    phases: Phases | None = None
    """Phases of the last request; None if none was tried."""
    address: Address | None = None
    """Address of the last request."""
    certificate_expires_at: datetime | None = None
    """Expiry of the last connection's certificate, also if it is past; None without a trusted certificate."""
    is_reached: bool = True
    """Whether the request was sent: False if there was no connection, or none was tried."""
    is_resolver_fault: bool = False
    """Whether it failed because all name servers failed."""
    is_network_fault: bool = False
    """Whether it failed because name servers, this machine or its network are or may be at fault."""
    is_date_fault: bool = False
    """Whether only the date of the certificate was wrong, by this machine's calendar."""
    tried: tuple[Address, ...] = ()
    """Addresses to which no connection could be made, for this URL or for those that redirected to it.

    Another address may have accepted the connection afterwards. If the connection was used before, they were
    tried when it was made.
    """
    redirected_from: URL | None = None
    """URL of the request, if redirects led to `url`."""
    redirected_by: Address | None = None
    """Address that sent a redirect without TLS to another host; anybody on the route may have sent it."""
    is_opted_out: bool = False
    """Whether nothing was sent because of an opt-out."""
    is_put_off: bool = False
    """Whether nothing was sent because other probes send the host enough requests."""
    allow: str = ""
    """The methods that `Allow` names, as sent (RFC 9110 10.2.1)."""
    credential: str | None = None
    """Name of the credential that the last request carried."""
    token_fault: str | None = None
    """Why there was no token: the request was sent without its credential, or with a rejected token."""
    withheld: str | None = None
    """Why a credential of the prober was not sent to the URL; None if there is none, or it was sent."""
    is_altered: bool = False
    """Whether a secret of the prober was removed from the body or its type, or stands in a redirect."""
    is_certificate_refused: bool = False
    """Whether the server demands a client certificate, or refuses that of `credential`.

    It says so by a TLS alert, or by a page of nginx.
    """

    is_head_too_large: bool = False
    """Whether the server says that the URL or the headers of the request are too large."""

    scrubber: Scrubber = field(default=NO_SECRETS, repr=False)
    """Removes the secrets that the request has sent, from texts that are read from the answer."""

    @property
    def is_foreign(self) -> bool:
        """Whether a redirect over plain HTTP led to another host, which may not belong to the target."""
        return self.redirected_by is not None


def scrubbed(fetched: Fetched, scrubber: Scrubber) -> Fetched:
    """Return an answer without the secrets that its sender has received, and may have sent back.

    Values that are sent to the peer again are dropped if they contain one.
    """
    if fetched.scrubber is not scrubber:
        fetched = replace(fetched, scrubber=scrubber)
    if 0 in fetched.body[:4]:
        fetched = replace(fetched, body=_json_in_utf8(fetched.body))
    usual = SEPARATOR.join((fetched.reason, fetched.content_type, fetched.allow))
    body = fetched.body
    if fetched.etag or fetched.last_modified or fetched.status_links or fetched.challenges:
        texts = (fetched.etag or "", fetched.last_modified or "", *fetched.status_links, *fetched.challenges)
        body = SEPARATOR.join(("", *texts)).encode("utf-8", "surrogatepass") + SEPARATOR.encode() + body
    if not (scrubber.may_be_in_cached(usual) or scrubber.may_be_shown_in(body)):
        # Nearly all answers.
        return fetched
    shown = scrubber.clean_shown(fetched.body)
    cleaned = None if scrubber.cleaned(fetched.body) is None else shown
    if cleaned is None and fetched.result is ResultClass.OK:
        # What is wrong with the answer is unknown: it is not at fault.
        fetched = replace(fetched, result=ResultClass.NOT_MEASURED, reason=UNSEARCHED)
    head = head_without_secrets(fetched, scrubber)
    return replace(
        fetched,
        **head,
        body=cleaned or b"",
        is_body_unread=fetched.is_body_unread or cleaned is None,
        is_altered=cleaned not in {None, fetched.body}
        or (head["content_type"], head["status_links"], head["challenges"])
        != (fetched.content_type, fetched.status_links, fetched.challenges),
        etag=_unchanged(fetched.etag, scrubber),
        last_modified=_unchanged(fetched.last_modified, scrubber),
        allow=scrubber.clean_text(fetched.allow),
    )


def _json_in_utf8(body: bytes) -> bytes:
    """Return JSON in UTF-16 or UTF-32 in UTF-8, in which secrets with invisible characters are found.

    Its parser reads all three. Other bodies are returned as they are.
    """
    try:
        text = body.decode(json.detect_encoding(body))
    except ValueError:
        return body
    return text.encode("utf-8", "surrogatepass") if text.lstrip("\ufeff \t\r\n")[:1] in {"{", "["} else body


def _unchanged(text: str | None, scrubber: Scrubber) -> str | None:
    """Return a text, None if it contains a secret."""
    return text if text is not None and scrubber.clean_text(text) == text else None


def unreached(url: URL, why: Unreached, credential: Credential | None) -> Fetched:
    """Return the failure of a connection that could not be established."""
    is_ours = why.is_certificate_refused and credential is not None
    return Fetched(
        url=url,
        result=why.result,
        reason=why.reason,
        phases=why.phases,
        address=why.address,
        certificate_expires_at=why.certificate_expires_at,
        credential=credential.name if is_ours and credential is not None else None,
        is_certificate_refused=why.is_certificate_refused,
        is_reached=why.is_certificate_refused,
        is_resolver_fault=why.is_resolver_fault,
        is_network_fault=why.is_resolver_fault or why.is_given_up or why.is_local_fault,
        is_date_fault=why.is_date_fault,
        tried=why.tried,
    )


def failed(
    url: URL,
    error: BaseException,
    line: HttpConnection | None,
    credential: Credential | None,
    tls: ClientTls | None = None,
) -> Fetched:
    """Return the failure of a request; `line`: its connection, None before there was one."""
    if line is None:
        result, reason = classify_failure(url, error)
        return Fetched(url=url, result=result, reason=reason)
    # A connection that the prober itself cancelled did not break.
    result, reason = classify_failure(url, TimeoutError() if line.is_late else error)
    refusal = certificate_alert(error, has_sent_one=credential is not None and credential.has_certificate)
    if refusal is None and tls is not None and line.first_byte_at_s is None and not line.is_late:
        # With TLS 1.3, a server looks at the certificate after the handshake, and some send no alert.
        refusal = tls.expiry_text
    if refusal is not None:
        result, reason = ResultClass.GATED, refusal
    is_first = line.asked == 1
    return Fetched(
        url=url,
        result=result,
        reason=reason,
        phases=Phases(
            dns_ms=line.dns_ms if is_first else None,
            connect_ms=line.connect_ms if is_first else None,
            tls_ms=line.tls_ms if is_first else None,
        ),
        address=line.address,
        tried=line.tried,
        certificate_expires_at=line.certificate_expires_at,
        credential=credential.name if refusal is not None and credential is not None else None,
        is_certificate_refused=refusal is not None,
    )


def phases_of(line: HttpConnection, ended_s: float) -> Phases:
    """Return the time of each phase of the last request."""
    is_first = line.asked == 1
    first_byte_at_s = line.first_byte_at_s or ended_s
    return Phases(
        dns_ms=line.dns_ms if is_first else None,
        connect_ms=line.connect_ms if is_first else None,
        tls_ms=line.tls_ms if is_first else None,
        first_byte_ms=in_ms(max(0.0, first_byte_at_s - line.sent_at_s)),
        last_byte_ms=in_ms(max(0.0, ended_s - first_byte_at_s)),
    )
