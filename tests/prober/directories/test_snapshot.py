from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifesign.prober.directories.snapshot import MAX_VALIDATOR_CHARS, Version, read_version

SETTINGS, DIGEST = "0123456789abcdef", "ab" * 32


def version(etag: str | None = None, modified: str | None = None) -> Version:
    return Version(settings=SETTINGS, digest=DIGEST, etag=etag, modified=modified)


@pytest.mark.parametrize("etag", [None, '"abc"', 'W/"a b"', "bare"])
def test_a_version_is_read_back(etag: str | None) -> None:
    assert read_version(str(version(etag))) == version(etag)


def test_incomplete_reading_differs_from_a_complete_one() -> None:
    whole, part = version(), replace(version(), is_complete=False)
    assert read_version(str(part)) == part
    assert [whole.describes_the_same(version('"a"')), whole.describes_the_same(part)] == [True, False]


def test_last_modified_is_stored_without_an_entity_tag() -> None:
    time = "Wed, 21 Oct 2026 07:28:00 GMT"
    assert read_version(str(version(None, time))) == version(None, time)
    assert read_version(str(version('"a"', time))) == version('"a"')


@pytest.mark.parametrize("etag", ["", " a", "a ", "a\r\nX: y", "é", "a" * (MAX_VALIDATOR_CHARS + 1)])
def test_invalid_etag_is_not_stored(etag: str) -> None:
    assert read_version(str(version(etag))) == version()


@given(
    st.none()
    | st.text()
    | st.from_regex(r"1 [0-9a-f]{14,18} [0-9a-f]{62,66}( incomplete)?( etag .*)?", fullmatch=True)
)
def test_any_memory_is_a_version_or_none(text: str | None) -> None:
    found = read_version(text)
    assert found is None or str(found) == text
