"""Tests mirror the source tree, but for a list of exceptions that may only shrink."""

from tests.support.mirror import exceptions, is_declaration, mirror_files, mirrored

MOST_EXCEPTIONS = 160


def test_every_source_file_has_a_test_file_and_every_test_file_a_source() -> None:
    pairs = mirrored()
    of_a_source = {file for files in pairs.values() for file in files}
    missing_tests = {
        f"src/lifesign/{source}": f"tests/{source.with_name(f'test_{source.name}')}"
        for source, files in pairs.items()
        if not files and not is_declaration(source)
    }
    without_source = {f"tests/{file}" for file in mirror_files() if file not in of_a_source}
    listed = set(exceptions())
    missing = [test for source, test in missing_tests.items() if source not in listed]
    assert not missing, f"add these files: {', '.join(missing)}"
    assert sorted(without_source - listed) == [], "rename these files: no source file has their name"
    assert sorted(listed - missing_tests.keys() - without_source) == [], (
        "delete these lines of tests/mirror_exceptions.txt"
    )


def test_list_of_exceptions_does_not_grow() -> None:
    assert len(exceptions()) <= MOST_EXCEPTIONS
