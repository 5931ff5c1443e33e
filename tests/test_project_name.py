"""The name of the project: lifesign everywhere, and no address that is not the project's."""

import re
from collections.abc import Iterator
from pathlib import Path

from tests.support.repository import REPOSITORY, tracked_files

from lifesign.domain.common.project import PROJECT_URL

OLD_NAME = re.compile(r"agent[-_ ]?health(?!y)", re.IGNORECASE)
NAMES_OF_THE_STANDARD = (
    r"\.well-known/[Aa]gent-[Hh]ealth\b",  # the path of the health document (draft 4.1)
    r"\bdraft-liang-agent-health-state(-00(\.txt)?)?\b",
    r"\bagent-health-0\.1\.0\b",  # the health document's schema, by its version
    r"\bAgent health document\b",  # the title of that schema
    r"\bAgentHealth(Middleware)?\b",  # serve the health document
    r"\bAgentHealthChanged\b",  # the payload of agent.health_changed
    r"\bAGENT_HEALTH_CHANGED\b",  # its type
    r"\bagent-health-changed\b",  # the example of that event
    r"\bexample\.com/ext/agent-health/v1\b",  # an extension in a captured card
)
ALLOWED = re.compile("|".join(NAMES_OF_THE_STANDARD))
FOREIGN_ADDRESS = re.compile(
    r"github\.com/(agent-?health|lifesign)\b|\b(agent-?health|lifesign)\.(github\.io|readthedocs|org|dev|com|net|ai)\b",
    re.IGNORECASE,
)


def files() -> list[Path]:
    """Return every file of the repository except this one, which has to spell the names."""
    found = tracked_files()
    assert len(found) > 1000
    return [file for file in found if file != Path(__file__)]


def lines() -> Iterator[tuple[str, str]]:
    """Yield each line with where it is, and each path as a line of its own."""
    for file in files():
        name = str(file.relative_to(REPOSITORY))
        yield name, name
        for number, line in enumerate(file.read_text(errors="ignore").splitlines(), start=1):
            yield f"{name}:{number}", line


def test_old_project_name_occurs_only_in_names_of_the_standard() -> None:
    found = [
        f"{place}: {line.strip()[:120]}"
        for place, line in lines()
        if OLD_NAME.search(line) and OLD_NAME.search(ALLOWED.sub("", line))
    ]
    assert found == []


def test_addresses_of_other_accounts_are_absent() -> None:
    assert [f"{place}: {line.strip()[:120]}" for place, line in lines() if FOREIGN_ADDRESS.search(line)] == []


def test_each_allowed_name_of_the_standard_is_used() -> None:
    text = "\n".join(line for _, line in lines())
    unused = [each for each in NAMES_OF_THE_STANDARD if re.search(each, text) is None]
    assert unused == []


def test_project_url_is_empty_before_the_first_release() -> None:
    assert PROJECT_URL == ""
