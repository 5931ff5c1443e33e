"""Tests mirror the source tree, but for a list of exceptions that may only shrink."""

from tests.support.mirror import exceptions, is_declaration, mirror_files, mirrored

MOST_EXCEPTIONS = 168


def test_every_source_file_has_a_test_file_and_every_test_file_a_source() -> None:
    pairs = mirrored()
    of_a_source = {file for files in pairs.values() for file in files}
    without_tests = [
        f"src/lifesign/{source}"
        for source, files in pairs.items()
        if not files and not is_declaration(source)
    ]
    without_source = [f"tests/{file}" for file in mirror_files() if file not in of_a_source]
    found, listed = {*without_tests, *without_source}, set(exceptions())
    assert sorted(found - listed) == [], "without a test file, or without a source file"
    assert sorted(listed - found) == [], "delete these lines of tests/mirror_exceptions.txt"


def test_list_of_exceptions_does_not_grow() -> None:
    assert len(exceptions()) <= MOST_EXCEPTIONS
