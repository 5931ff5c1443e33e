"""Reads the targets that a directory lists. One file per format.

Formats do no I/O; `reader` fetches. Plug-ins add formats by the entry point group `lifesign.directories`.
"""

from lifesign.prober.directories.format_choice import AUTO, ENTRY_POINT_GROUP, names
from lifesign.prober.directories.format_parser import (
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
from lifesign.prober.directories.target_collection import PROBED_KINDS, SkippedEntries, kinds_of

__all__ = [
    "AUTO",
    "ENTRY_POINT_GROUP",
    "PROBED_KINDS",
    "SKIP_REASONS",
    "DirectoryPage",
    "Document",
    "Format",
    "Get",
    "Got",
    "Kind",
    "ListSource",
    "Listed",
    "NotRead",
    "NotReadable",
    "SkipReason",
    "Skipped",
    "SkippedEntries",
    "Snapshot",
    "Unchanged",
    "WantedDocument",
    "kinds_of",
    "names",
    "read_directory",
]
