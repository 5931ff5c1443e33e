"""Which targets does a directory list? One file per format.

    reader             how is a whole directory read: to its end, politely, or not at all?
    source             which directory is read, how is it fetched, and where may it stand?
    fetching           how does the prober's own fetcher get a document of a directory?
    walk               which document of a directory is read next, and when is it all?
    gathered           which entries are targets, what was left out, and what came twice?
    snapshot           what did reading a directory come to?

    formats            which format is a directory in, by name or by content?
    page               what does one document of a directory say? `Format`, which plug-ins have too
    bounded_json       is this JSON, and is it small enough to take apart?

    plain_list         text, CSV, JSON and JSONL of URLs or domains
    a2a_registry       a2aregistry.org
    ai_catalog         AI Catalog, ARD
    api_catalog        RFC 9727
    mcp_registry       the registry of MCP servers
    agntcy_directory   AGNTCY, OASF records
    nanda_index        NANDA
    anp_descriptions   the Agent Network Protocol
    our_registry       a registry of lifesign

Formats touch nothing and wait for nobody; only `reader` waits, by the means that it is given. Formats of
other packages are found by the entry point group `lifesign.directories`.
"""

from lifesign.prober.directories.formats import AUTO, ENTRY_POINT_GROUP, names
from lifesign.prober.directories.gathered import PROBED_KINDS, LeftOut
from lifesign.prober.directories.page import (
    SKIP_REASONS,
    DirectoryPage,
    Document,
    Format,
    Kind,
    Listed,
    NotReadable,
    Skipped,
    SkipReason,
)
from lifesign.prober.directories.reader import read_directory
from lifesign.prober.directories.snapshot import NotRead, Snapshot, Unchanged
from lifesign.prober.directories.source import Get, Got, ListSource, WantedDocument

__all__ = [
    "AUTO",
    "ENTRY_POINT_GROUP",
    "PROBED_KINDS",
    "SKIP_REASONS",
    "Document",
    "Format",
    "Get",
    "Got",
    "Kind",
    "LeftOut",
    "Listed",
    "NotRead",
    "NotReadable",
    "DirectoryPage",
    "SkipReason",
    "Skipped",
    "Snapshot",
    "ListSource",
    "Unchanged",
    "WantedDocument",
    "names",
    "read_directory",
]
