import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifesign.domain.parsing.surrogate_escapes import replace_half_pairs


@pytest.mark.parametrize(
    ("given_text", "replaced"),
    [
        ("a\ud83d", "a\ufffd"),
        ("\ude00b", "\ufffdb"),
        ("\ude00\ud83d", "\ufffd\ufffd"),
        ("\ud83d\ud83d\ude00", "\ufffd\U0001f600"),
        ("\U0001f600", "\U0001f600"),
        ("\\ud83d", "\\ud83d"),
        ("\\\ud83d", "\\\ufffd"),
        ('"\ud83d"', '"\ufffd"'),
    ],
)
def test_half_of_a_surrogate_pair_becomes_the_replacement_character(given_text: str, replaced: str) -> None:
    assert json.loads(replace_half_pairs(json.dumps([given_text]).encode())) == [replaced]


@pytest.mark.parametrize("escape", [rb"\ud83d", rb"\uD83D", rb"\udE00", rb"\uDBFF"])
def test_escapes_in_any_case_are_found(escape: bytes) -> None:
    assert replace_half_pairs(b'"' + escape + b'"') == rb'"\ufffd"'


@given(st.text(st.characters(exclude_categories=()) | st.sampled_from('\\u\ud83d\ude00"')))
def test_json_keeps_its_length_and_all_whole_characters(text: str) -> None:
    written = json.dumps(text).encode()
    read = replace_half_pairs(written)
    assert len(read) == len(written)
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert len(json.loads(read)) == len(json.loads(written))
    if text == whole:
        assert read == written
    json.loads(read).encode()
