"""What does a registry of an older version not know of what is reported, and what is reported to it then?"""

import json
from typing import Any

import pytest

from lifesign.client.older_registry import ASK_AGAIN_SECONDS, MAX_LEFT_OUT, UnknownMembers
from lifesign.client.registry_errors import Unprocessable

BODY: dict[str, Any] = {
    "observations": [
        {"target_url": "https://a.example/", "document": {"status": "healthy", "mood": 1}},
        {"target_url": "https://b.example/", "paths": {"/ping~": {"result": "ok", "new": 2}}},
    ],
    "memories": [{"probed_at_s": 1.0, "luck": 3}, None],
    "tokens": {"7": 8},
}


def refusal(*pointers: object, name: str = "extra_forbidden") -> Unprocessable:
    faults = [{"pointer": pointer, "name": name, "message": "no"} for pointer in pointers]
    return Unprocessable("no", status=422, details={"faults": faults})


def without(left_out: UnknownMembers, now_s: float = 0.0) -> Any:
    return json.loads(left_out.without(json.dumps(BODY).encode(), now_s))


def test_what_is_named_of_one_result_is_left_out_of_all() -> None:
    left_out = UnknownMembers()
    assert without(left_out) == BODY
    assert left_out.note(refusal("/observations/9/document/mood", "/memories/1/luck"), 0.0)
    assert left_out.note(refusal("/observations/1/paths/~1ping~0/new"), 0.0)
    assert without(left_out) == {
        "observations": [
            {"target_url": "https://a.example/", "document": {"status": "healthy"}},
            {"target_url": "https://b.example/", "paths": {"/ping~": {"result": "ok"}}},
        ],
        "memories": [{"probed_at_s": 1.0}, None],
        "tokens": {"7": 8},
    }
    assert left_out.names == ["memories.luck", "observations.document.mood", "observations.paths./ping~.new"]
    # Named again, it is nothing new: whoever asks would ask for ever.
    assert not left_out.note(refusal("/memories/0/luck"), 0.0)


@pytest.mark.parametrize(
    "pointer",
    [
        "/tokens",
        "/tokens/7",
        "/observations",
        "/observations/0",
        "/observations/x/y",
        "",
        None,
        5,
        "/0/1/2/3",
    ],
)
def test_whose_results_they_are_is_never_left_out(pointer: object) -> None:
    left_out = UnknownMembers()
    assert not left_out.note(refusal(pointer), 0.0)
    assert without(left_out) == BODY


@pytest.mark.parametrize("details", [{}, {"faults": None}, {"faults": {}}, {"faults": [None, 1, {}]}])
def test_a_refusal_that_names_nothing_is_one(details: dict[str, Any]) -> None:
    assert not UnknownMembers().note(Unprocessable("no", details=details), 0.0)
    assert not UnknownMembers().note(refusal("/observations/0/document/mood", name="string_type"), 0.0)


def test_no_registry_makes_us_leave_out_any_number() -> None:
    left_out = UnknownMembers()
    assert left_out.note(refusal(*(f"/memories/0/m{number}" for number in range(MAX_LEFT_OUT + 9))), 0.0)
    assert len(left_out.names) == MAX_LEFT_OUT
    assert not left_out.note(refusal("/memories/0/one-more"), 0.0)


def test_after_an_hour_all_is_told_again() -> None:
    left_out = UnknownMembers()
    left_out.note(refusal("/memories/0/luck"), 5.0)
    assert without(left_out, ASK_AGAIN_SECONDS) != BODY
    assert without(left_out, 5.0 + ASK_AGAIN_SECONDS) == BODY
    assert left_out.names == []
