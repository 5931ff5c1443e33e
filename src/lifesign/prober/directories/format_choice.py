"""Directory formats: chosen by name, or recognised by content.

Plug-ins add formats through the entry point group `lifesign.directories`. The entry point's name is the name
of the format; its object is a `Format`, or a class of one without arguments. Plug-ins are tried before the
generic formats. An error in a plug-in is reported and has no other effect: whatever the plug-in raises
becomes `BrokenPlugIn`.
"""

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from itertools import islice
from typing import Any, Final

from lifesign.domain.a2a.agent_card import CardKind, interpret_agent_card
from lifesign.domain.parsing.lenient_json import MAX_SHOWN_CHARS
from lifesign.errors import InvalidValue
from lifesign.prober.directories.a2a_registry import A2aRegistryFormat
from lifesign.prober.directories.agntcy_directory import AgntcyDirectory
from lifesign.prober.directories.ai_catalog import ARD_PLACE, AiCatalog
from lifesign.prober.directories.anp_descriptions import AnpDescriptions
from lifesign.prober.directories.api_catalog import ApiCatalog
from lifesign.prober.directories.format_parser import (
    MAX_ITEMS,
    SKIP_REASONS,
    DirectoryPage,
    Document,
    Format,
    Kind,
    Listed,
    NotReadable,
    Skipped,
)
from lifesign.prober.directories.mcp_registry import McpRegistry
from lifesign.prober.directories.nanda_index import NandaIndex
from lifesign.prober.directories.our_registry import OurRegistry
from lifesign.prober.directories.plain_list import PlainList, describe_encoding, describe_junk, is_empty_list

AUTO: Final = "auto"
EMPTY_LIST: Final = "empty: it lists no agent, which may be a broken export"
ENTRY_POINT_GROUP: Final = "lifesign.directories"
MAX_PLUG_INS: Final = 100

# The first format that recognises a document reads it: AGNTCY's pages contain entries of AI Catalog, but
# other page links.
DETECTED_BY_CONTENT: Final[tuple[Format, ...]] = (
    A2aRegistryFormat(), OurRegistry(), AgntcyDirectory(), AiCatalog(), McpRegistry(), ApiCatalog(),
    AnpDescriptions(),
)  # fmt: skip
FALLBACK_FORMATS: Final[tuple[Format, ...]] = (NandaIndex(), PlainList())
BUILT_IN: Final = {one.name: one for one in (*DETECTED_BY_CONTENT, *FALLBACK_FORMATS)}
WELL_KNOWN: Final = (ARD_PLACE, AiCatalog.place, ApiCatalog.place)
"""Well-known paths of a domain's catalogs, in the order of requests."""

_log = logging.getLogger("lifesign.prober")
_NAME: Final = re.compile("[a-z0-9][a-z0-9_-]{0,63}")
_HTML: Final = re.compile(rb"\s*<")
_SCHEMA_KEYS: Final = frozenset({"properties", "$defs", "definitions", "allOf", "anyOf", "oneOf"})


class BrokenPlugIn(Exception):
    """A plug-in for a directory format cannot be loaded or used. The message names it and the reason."""


class PlugIn:
    """A directory format of another package. Its exceptions and results are checked."""

    def __init__(self, entry_point: metadata.EntryPoint) -> None:
        self.name = entry_point.name
        try:
            loaded: Any = entry_point.load()
            # Its type is unknown.
            self._format: Any = loaded() if isinstance(loaded, type) else loaded
            self.place: Any = self._format.place
            is_complete = callable(self._format.recognises) and callable(self._format.read)
        except (Exception, SystemExit) as error:
            raise self._broken("cannot be loaded", error) from error
        if not isinstance(self.place, str) or not is_complete:
            raise self._broken("is no format: expected name, place, recognises and read")

    def recognises(self, document: Document) -> bool:
        """Return whether the plug-in recognises a document; BrokenPlugIn if it fails."""
        try:
            return bool(self._format.recognises(document))
        except Exception as error:
            raise self._broken("failed to look at a document", error) from error

    def read(self, document: Document) -> DirectoryPage:
        """Return the entries that the plug-in finds, after a check. Raises NotReadable, BrokenPlugIn."""
        try:
            return self._checked(self._format.read(document))
        except (NotReadable, BrokenPlugIn):
            raise
        except Exception as error:
            raise self._broken("failed to read a document", error) from error

    def _checked(self, page: Any) -> DirectoryPage:
        if not isinstance(page, DirectoryPage):
            raise self._broken(f"read a document as {type(page).__name__}, not as a DirectoryPage")
        if fault := _fault_of(page):
            raise self._broken(f"read a document as a DirectoryPage with {fault}")
        entries = list(islice(page.entries, MAX_ITEMS + 1))
        if len(entries) > MAX_ITEMS:
            raise NotReadable(f"expected at most {MAX_ITEMS} items")
        if not all(map(_is_entry, entries)):
            raise self._broken("listed something that is neither Listed nor Skipped, or without a text")
        return replace(page, entries=entries)

    def _broken(self, what: str, error: BaseException | None = None) -> BrokenPlugIn:
        text = "" if error is None else f": {shown_error(error)}"
        return BrokenPlugIn(f"the directory format {self.name!a} of another package {what}{text}")


def _fault_of(page: Any) -> str:
    """Name the members of a plug-in's page, other than its entries, that have a wrong type."""
    following = page.next_page
    is_following = (
        all(isinstance(text, str) for pair in following.items() for text in pair)
        if isinstance(following, Mapping)
        else isinstance(following, str | None)
    )
    faults = {
        "next_page": not is_following,
        "nested": not isinstance(page.nested, tuple) or not all(isinstance(url, str) for url in page.nested),
        "items": not isinstance(page.items, int | None),
        "total": not isinstance(page.total, int | None),
    }
    return ", ".join(f"a wrong {name}" for name, is_wrong in faults.items() if is_wrong)


def _is_entry(entry: Any) -> bool:
    match entry:
        case Listed(url=str(), name=str() | None, kind=Kind()):
            return True
        case Skipped(what=str(), reason=reason):
            return reason in SKIP_REASONS
        case _:
            return False


def well_known_places(chosen: Format | None) -> tuple[str, ...]:
    """Return the paths on a host at which a list in this format (None: any format) may be."""
    if chosen is None:
        return WELL_KNOWN
    return (ARD_PLACE, chosen.place) if chosen.place == AiCatalog.place else (chosen.place,)


def names() -> tuple[str, ...]:
    """Return the names of all formats, those of plug-ins last."""
    return (*BUILT_IN, *plug_ins())


def format_called(name: str) -> Format:
    """Return the format with this name; InvalidValue if there is none. Raises BrokenPlugIn."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    entry_point = plug_ins().get(name)
    if entry_point is None:
        raise InvalidValue("format", name[:MAX_SHOWN_CHARS], f"one of {', '.join((AUTO, *names()))}")
    return PlugIn(entry_point)


def format_of(document: Document) -> tuple[Format | None, Sequence[tuple[str, str]]]:
    """Return the format of a document, by its content; None if no format recognises it.

    And the formats that failed, with the reason.

    A failure has the name of a finding, and a message.
    """
    complaints: list[tuple[str, str]] = []
    for one in DETECTED_BY_CONTENT:
        if _is_recognised(one, document, complaints):
            return one, complaints
    for name in plug_ins():
        try:
            plug_in = format_called(name)
            if plug_in.recognises(document):
                return plug_in, complaints
        except BrokenPlugIn as error:
            complaints.append(("broken_plug_in", str(error)))
    found = (one for one in FALLBACK_FORMATS if _is_recognised(one, document, complaints))
    return next(found, None), complaints


def _is_recognised(one: Format, document: Document, complaints: list[tuple[str, str]]) -> bool:
    """Return whether a built-in format recognises a document.

    A defect in it is reported; the others are tried.
    """
    try:
        return one.recognises(document)
    except Exception as error:  # noqa: BLE001 - it is logged, and the other formats are asked
        _log.exception(
            "the directory format %s failed on the document %s; the other formats are tried",
            one.name,
            document.url,
        )
        message = f"the directory format {one.name} failed on a document: {shown_error(error)}"
        complaints.append(("reader_failed", message))
        return False


def shown_error(error: BaseException) -> str:
    """Return the type of an error and the beginning of its text, in ASCII, since it may quote a stranger."""
    return ascii(f"{type(error).__name__}: {error}"[: 2 * MAX_SHOWN_CHARS])[1:-1]


def plug_ins() -> dict[str, metadata.EntryPoint]:
    """Return the formats of other packages, sorted by name, without loading them.

    A name that is ours, or no name of a format, is passed over.
    """
    found = sorted(metadata.entry_points(group=ENTRY_POINT_GROUP), key=lambda one: (one.name, one.value))
    named = {one.name: one for one in reversed(found) if _NAME.fullmatch(one.name)}
    return {name: named[name] for name in sorted(named.keys() - {AUTO, *BUILT_IN})[:MAX_PLUG_INS]}


def describe(document: Document) -> str:
    """Return in words what an unrecognised document is, to complete "this is …"."""
    if is_empty_list(document):
        return EMPTY_LIST
    value = document.value
    if value is None:
        return _describe_text(document)
    if isinstance(value, list):
        return describe_junk(document) or "a JSON list of neither URLs nor objects with a URL"
    if "$schema" in value and not _SCHEMA_KEYS.isdisjoint(value):
        return "a JSON Schema"
    if interpret_agent_card(value).kind is not CardKind.NOT_A_CARD:
        return "an agent's own A2A card: list its URL as a target"
    members = ", ".join(ascii(key)[1:-1][:MAX_SHOWN_CHARS] for key in list(value)[:5])
    return describe_junk(document) or f"a JSON object with the members {members}"


def _describe_text(document: Document) -> str:
    if _HTML.match(document.body) or document.content_type == "text/html":
        return "a page (HTML or XML)"
    if junk := describe_junk(document):
        return junk
    if encoding := describe_encoding(document):
        return encoding
    is_meant_as_json = document.body.lstrip()[:1] in {b"{", b"["}
    return document.json_fault if is_meant_as_json else "text whose lines are neither URLs nor domains"
