import base64
import json

import pytest

from lifesign.domain.errors import InvalidRequest
from lifesign.registry.request_handling.cursors import cursor_at, numbers_in, text_in


def packed(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def test_cursor_returns_its_position() -> None:
    assert numbers_in(cursor_at("least_loaded", 3, 2**63 - 1), "least_loaded", 2) == [3, 2**63 - 1]
    assert text_in(cursor_at("keys", "key_1"), "keys") == "key_1"


@pytest.mark.parametrize(
    "cursor",
    [
        "", "x", "1", "9" * 18, "é", packed(7), packed([]), packed(["leases"]), packed(["leases", 1, 2]),
        packed(["leases", -1]), packed(["leases", 2**63]), packed(["leases", True]), packed(["leases", "1"]),
        packed(["leases", 1.0]), packed(["agents", 1]), packed([7]), "W" * 512,
    ],
)  # fmt: skip
def test_foreign_cursor_is_refused(cursor: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        numbers_in(cursor, "leases", 1)
    assert [(fault.name, fault.pointer) for fault in refused.value.faults] == [("invalid_cursor", "/cursor")]


@pytest.mark.parametrize("place", [[], ["a", "b"], [1], [""], ["x" * 65], ["a\0"], ["ä"], [None]])
def test_cursor_without_an_id_is_refused(place: list[object]) -> None:
    with pytest.raises(InvalidRequest):
        text_in(packed(["keys", *place]), "keys")
