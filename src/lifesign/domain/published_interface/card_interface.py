"""Interface that an agent card publishes: provider, skills, URLs to call, modes and security.

Signatures, dates, icons and the order of lists are left out. A 0.x card and a 1.0 card with the same content
have the same form. Section numbers are those of the A2A 1.0 specification.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Any, Final
from urllib.parse import urlsplit

from lifesign.domain.a2a.agent_card import MAX_AUTH_SCHEMES, MAX_SKILLS
from lifesign.domain.a2a.interfaces import (
    MAX_INTERFACES,
    AgentInterface,
    major_minor,
    read_interfaces,
    read_protocol_version,
)
from lifesign.domain.a2a.security_schemes import scheme_members
from lifesign.domain.parsing.lenient_json import LenientObject
from lifesign.domain.published_interface.published import (
    MAX_KEY_CHARS,
    MAX_URL_KEY_CHARS,
    Form,
    Interface,
    InterfaceKind,
    bounded_interface,
    group,
    name_set,
    optional_text,
    short,
    without_absent,
)
from lifesign.domain.targets.target import origin_of

# A URL in its usual spelling, without user, query or its default port: nearly all are like this.
_PLAIN: Final = re.compile(
    r"(https?://[a-z0-9-]+(?:\.[a-z0-9-]+)*(?!:(?:80|443)(?:/|$))(?::[1-9][0-9]{0,4})?)(/[!-\"$->@-~]*)?"
)

MAX_MODES: Final = 32
MAX_SCOPES: Final = 32
MAX_ALTERNATIVES: Final = 32
"""Security requirements of which a caller has to meet one."""


def read_card_interface(body: bytes, places: Sequence[AgentInterface] | None = None) -> Interface | None:
    """Return the published interface in an agent card's bytes; None if they are no JSON object.

    `places`: as for `card_interface`.
    """
    try:
        members = json.loads(body.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return None
    return card_interface(members, places) if isinstance(members, dict) else None


def card_interface(members: dict[str, Any], places: Sequence[AgentInterface] | None = None) -> Interface:
    """Return the published interface in a parsed agent card. Invalid members count as absent.

    `places`: the places to call, if they are read already; None: they are read from `members`.
    """
    card = LenientObject(members, (), [])
    schemes = _schemes(members)
    if places is None:
        places = read_interfaces(card, read_protocol_version(card))
    named = (_named_place(place) for place in places[:MAX_INTERFACES])
    groups = without_absent({
        "name": optional_text(members.get("name")),
        "provider": optional_text(card.inside("provider").members.get("organization")),
        "interfaces": group(named, chars=MAX_URL_KEY_CHARS),
        "skills": group(_skills(card, schemes)),
        "input_modes": name_set(members.get("defaultInputModes"), MAX_MODES),
        "output_modes": name_set(members.get("defaultOutputModes"), MAX_MODES),
        "required_extensions": group(_required_extensions(card), MAX_MODES, MAX_URL_KEY_CHARS),
        "security_schemes": schemes,
        "security": _security(members, schemes),
    })  # fmt: skip
    return bounded_interface(InterfaceKind.AGENT_CARD, groups)


def _named_place(place: AgentInterface) -> tuple[str, Form]:
    """Return a place to call with its name; the same URL with another binding is another place."""
    url, version = _shown_url(place.url), major_minor(place.protocol_version)
    name = " ".join(part for part in (place.binding, version, place.tenant, url) if part)
    return name, without_absent({
        "url": short(url),
        "binding": optional_text(place.binding),
        "protocol_version": optional_text(version),
        "tenant": optional_text(place.tenant),
    })  # fmt: skip


def _shown_url(url: str) -> str:
    """Return a URL in its usual spelling, in which a digest replaces user and query: they may be secret."""
    if (plain := _PLAIN.fullmatch(url)) is not None:
        return plain[1] if plain[2] == "/" else url
    try:
        parts = urlsplit(url)
    except ValueError:
        return url
    user, _, netloc = parts.netloc.rpartition("@")
    with suppress(ValueError):
        netloc = urlsplit(origin_of(url)).netloc
    hidden = f"{user}?{parts.query}"
    # Of the root, the path may be omitted (RFC 3986 6.2.3).
    path = "" if parts.path == "/" else parts.path
    shown = parts._replace(netloc=netloc, path=path, query="", fragment="").geturl()
    return shown if hidden == "?" else f"{shown}?{sha256(hidden.encode('utf-8', 'replace')).hexdigest()[:16]}"


def _skills(card: LenientObject, schemes: Form) -> Iterator[tuple[str, Form]]:
    for members in card.items("skills", MAX_SKILLS):
        if not isinstance(members, dict):
            continue
        name = members.get("id") or members.get("name")
        if isinstance(name, str):
            yield name, without_absent({
                "name": optional_text(members.get("name")),
                "description": optional_text(members.get("description")),
                "tags": name_set(members.get("tags"), MAX_MODES),
                "input_modes": name_set(members.get("inputModes"), MAX_MODES),
                "output_modes": name_set(members.get("outputModes"), MAX_MODES),
                "security": _security(members, schemes),
            })  # fmt: skip


def _required_extensions(card: LenientObject) -> Iterator[tuple[str, bool]]:
    capabilities = card.members.get("capabilities")
    extensions = capabilities.get("extensions") if isinstance(capabilities, dict) else None
    for extension in extensions if isinstance(extensions, list) else ():
        if isinstance(extension, dict) and extension.get("required") is True:
            uri = extension.get("uri")
            if isinstance(uri, str):
                yield uri, True


def _schemes(members: Mapping[str, Any]) -> Form:
    """Return the security schemes; those of 0.1 have only a name."""
    older, newer = members.get("authentication"), members.get("securitySchemes")
    names = older.get("schemes") if isinstance(older, dict) else None
    found = (
        [(name, {"type": "http"}) for name in names if isinstance(name, str)]
        if isinstance(names, list)
        else []
    )
    if isinstance(newer, dict):
        found += [(name, _scheme(scheme)) for name, scheme in newer.items() if isinstance(scheme, dict)]
    return group(found, MAX_AUTH_SCHEMES)


def _scheme(scheme: Mapping[str, Any]) -> Form:
    kind, members = scheme_members(scheme)
    return without_absent({
        "type": optional_text(kind),
        "location": optional_text(members.get("in") or members.get("location")),
        "name": optional_text(members.get("name")),
        "scheme": optional_text(_lower(members.get("scheme"))),
        "issuer": optional_text(members.get("openIdConnectUrl")),
        "flows": _flows(members.get("flows")),
    })  # fmt: skip


def _lower(text: object) -> object:
    """Return a text in lower case: names of HTTP schemes have no case (RFC 9110 11.1)."""
    return text.lower() if isinstance(text, str) else text


def _flows(flows: object) -> Form:
    if not isinstance(flows, dict):
        return {}
    return group(((name, _flow(flow)) for name, flow in flows.items() if isinstance(flow, dict)), MAX_SCOPES)


def _flow(flow: Mapping[str, Any]) -> Form:
    scopes = flow.get("scopes")
    return without_absent({
        "authorization_url": optional_text(flow.get("authorizationUrl")),
        "token_url": optional_text(flow.get("tokenUrl")),
        "scopes": name_set([*scopes] if isinstance(scopes, dict) else scopes, MAX_SCOPES),
    })  # fmt: skip


def _security(members: Mapping[str, Any], schemes: Form) -> Form:
    """Return the security requirements, of which a caller has to meet one; empty if there is none.

    Each is a set of schemes, with what a caller has to send for each, and scopes: a scheme of another type,
    or with another place of its key, is another requirement.
    """
    given = members.get("securityRequirements")
    given = members.get("security") if not isinstance(given, list) or not given else given
    alternatives = [_alternative(each, schemes) for each in given] if isinstance(given, list) else []
    older = members.get("authentication")
    if not alternatives and isinstance(older, dict) and isinstance(older.get("schemes"), list):
        alternatives = [
            {short(name, MAX_KEY_CHARS): True} for name in older["schemes"] if isinstance(name, str)
        ]
    if not alternatives:
        return {}
    return group(
        ((_alternative_name(each), each) for each in alternatives if each is not None), MAX_ALTERNATIVES
    )


def _alternative_name(alternative: Form) -> str:
    return " + ".join(sorted(alternative)) or "none"


def _alternative(given: object, schemes: Form) -> Form | None:
    if not isinstance(given, dict):
        return None
    nested = given.get("schemes")
    named = nested if isinstance(nested, dict) else given
    return group(_requirements(named, schemes), MAX_SCOPES)


def _requirements(named: Mapping[str, Any], schemes: Form) -> Iterable[tuple[str, bool]]:
    for name, scopes in named.items():
        yield " ".join((name, *_needed(schemes.get(short(name, MAX_KEY_CHARS))))), True
        listed = scopes.get("list") if isinstance(scopes, dict) else scopes
        for scope in listed if isinstance(listed, list) else ():
            if isinstance(scope, str):
                yield f"{name}:{scope}", True


def _needed(scheme: object) -> Iterator[str]:
    """Yield what a caller needs to know to send the credential of a scheme: its type, and where it goes."""
    if not isinstance(scheme, dict):
        return
    # Names of header fields have no case.
    name = _lower(scheme.get("name")) if scheme.get("location") == "header" else scheme.get("name")
    for text in (scheme.get("type"), scheme.get("scheme"), scheme.get("location"), name):
        if isinstance(text, str):
            yield text
