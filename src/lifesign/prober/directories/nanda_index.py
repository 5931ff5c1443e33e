"""Directory format of the NANDA index.

`GET /list` answers an object with the id and URL of every agent. Older indexes add `agent_status`.
"""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

from lifesign.prober.directories.format_parser import (
    SAMPLE,
    DirectoryPage,
    Document,
    Entry,
    Listed,
    NotReadable,
    Skipped,
    is_object,
)

_STATUS_KEY: Final = "agent_status"


class NandaIndex:
    """Format of a NANDA index: a JSON object with the URL of each agent."""

    name = "nanda"
    place = "/list"

    def recognises(self, document: Document) -> bool:
        """Return whether most members of a document's beginning map an agent's name to a URL."""
        value = document.value
        return is_object(value) and bool(value) and _is_map(value)

    def read(self, document: Document) -> DirectoryPage:
        """Return the entries of the index."""
        value = document.value
        # An error answer of an index is an object too.
        if not is_object(value) or (value and not _is_map(value)):
            raise NotReadable("expected an object: ids of agents and their URLs")
        agents = {name: url for name, url in value.items() if name != _STATUS_KEY}
        return DirectoryPage(entries=_entries(agents), items=len(agents))


def _is_map(value: Mapping[str, Any]) -> bool:
    sample = [(name, url) for name, url in islice(value.items(), SAMPLE) if name != _STATUS_KEY]
    # Schemas and linked data have URLs under `$schema` and `@id`.
    urls = [name for name, url in sample if isinstance(url, str) and "://" in url and name[:1] not in "$@"]
    return len(urls) * 2 > len(sample)


def _entries(agents: Mapping[str, Any]) -> Iterator[Entry]:
    for name, url in agents.items():
        if isinstance(url, str) and url:
            yield Listed(url, name)
        else:
            yield Skipped(name, "no_url")
