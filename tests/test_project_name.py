"""The name of the project: lifesign everywhere, and no address that is not the project's."""

import re
from collections.abc import Iterator
from functools import cache
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


@cache
def texts() -> dict[str, str]:
    """Return the text of each file by its path, with the path as its first line."""
    names = {str(file.relative_to(REPOSITORY)): file for file in files()}
    return {name: f"{name}\n{file.read_text(errors='ignore')}" for name, file in names.items()}


def lines(pattern: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    """Yield each line with the pattern, with where it is; line 0 is the path."""
    for name, text in texts().items():
        if pattern.search(text):
            for number, line in enumerate(text.splitlines()):
                if pattern.search(line):
                    yield f"{name}:{number}", line


def test_old_project_name_occurs_only_in_names_of_the_standard() -> None:
    found = [
        f"{place}: {line.strip()[:120]}"
        for place, line in lines(OLD_NAME)
        if OLD_NAME.search(ALLOWED.sub("", line))
    ]
    assert found == []


def test_addresses_of_other_accounts_are_absent() -> None:
    assert [f"{place}: {line.strip()[:120]}" for place, line in lines(FOREIGN_ADDRESS)] == []


def test_each_allowed_name_of_the_standard_is_used() -> None:
    unused = [
        each for each in NAMES_OF_THE_STANDARD if not any(re.search(each, text) for text in texts().values())
    ]
    assert unused == []


def test_project_url_is_empty_before_the_first_release() -> None:
    assert PROJECT_URL == ""
