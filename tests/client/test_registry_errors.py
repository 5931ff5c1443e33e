import pytest

from lifesign import errors
from lifesign.client import registry_errors
from lifesign.client.registry_errors import (
    Conflict,
    Gone,
    InvalidAnswer,
    NotAuthorized,
    NotFound,
    NotPermitted,
    PreconditionRequired,
    RateLimited,
    RegistryError,
    RegistryFailure,
    RegistryRefusal,
    Stale,
    Unavailable,
    Unprocessable,
    error_of,
    is_final,
    may_have_been_executed,
)
from lifesign.registry.request_handling.error_statuses import STATUS_AND_CODE

BODY = {
    "error": {"code": "a_code", "message": "in words", "details": {"agent_id": "a"}},
    "message": "in words",
}


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, RegistryRefusal), (401, NotAuthorized), (402, RegistryRefusal), (403, NotPermitted),
        (404, NotFound), (409, Conflict), (410, Gone), (412, Stale), (413, RegistryRefusal),
        (422, Unprocessable), (428, PreconditionRequired), (429, RateLimited), (500, InvalidAnswer),
        (502, Unavailable), (503, Unavailable), (504, Unavailable), (307, InvalidAnswer),
    ],
)  # fmt: skip
def test_each_status_has_its_error(status: int, kind: type[RegistryError]) -> None:
    error = error_of(status, BODY, retry_after_s=3.0)
    assert type(error) is kind
    assert (error.status, error.code, error.details) == (status, "a_code", {"agent_id": "a"})
    assert error.retry_after_s == 3.0
    assert str(status) in str(error)


def test_each_error_code_of_the_registry_maps_to_an_exception() -> None:
    for status, code in STATUS_AND_CODE.values():
        error = error_of(status, {"error": {"code": code, "message": "", "details": {}}, "message": ""})
        assert isinstance(error, RegistryRefusal | Unavailable), (status, code)
        assert error.code == code


def test_hint_of_the_answer_is_kept_on_one_short_line() -> None:
    columns = {"code": "not_allowed", "message": "", "details": {}, "hint": "use\nanother " + "x" * 9999}
    error = error_of(403, {"error": columns, "message": ""})
    assert error.hint.startswith("use another x")
    assert len(error.hint) == registry_errors.MAX_TEXT_CHARS
    assert error_of(403, {"error": {**columns, "hint": 5}, "message": ""}).hint == ""


@pytest.mark.parametrize("status", [404, 410])
@pytest.mark.parametrize(
    "body",
    [None, {"detail": "Not Found"}, {"error": {"code": 404, "message": "", "status": "NOT_FOUND"}}],
)
def test_missing_place_in_another_form_is_a_wrong_url_and_no_missing_agent(status: int, body: object) -> None:
    assert isinstance(error_of(status, body), InvalidAnswer)


def test_unknown_path_of_a_registry_is_a_wrong_url() -> None:
    error = error_of(404, {"error": {"code": "not_found", "message": "Not Found", "details": {}}})
    assert isinstance(error, InvalidAnswer)
    assert "no registry API" in str(error)


@pytest.mark.parametrize(
    "body",
    [None, [], "text", 7, {}, {"error": "text"}, {"error": {"code": 5, "message": [], "details": "x"}}],
)
@pytest.mark.parametrize("status", [400, 401, 403, 408, 409, 412, 422, 431, 499])
def test_refusal_without_a_code_is_not_the_registrys(status: int, body: object) -> None:
    error = error_of(status, body, reason="Forbidden")
    assert isinstance(error, InvalidAnswer)
    assert (error.status, error.code, error.details) == (status, "", {})
    assert not is_final(error)
    assert may_have_been_executed(error)


def test_refusals_of_size_and_rate_need_no_code() -> None:
    too_large, too_many = error_of(413, None), error_of(429, None)
    assert is_final(too_large)
    assert isinstance(too_many, RateLimited)
    assert not is_final(too_many)
    assert not may_have_been_executed(too_many)


def test_error_message_is_one_short_line() -> None:
    error = error_of(413, {"message": "two\nlines " + "x" * 10_000})
    assert "\n" not in error.message
    assert len(error.message) < 600


def test_conflict_contains_the_lease_and_stale_version_the_current_one() -> None:
    conflict, stale = (
        error_of(409, {**BODY, "existing_lease": {"lease_id": "l"}}),
        error_of(412, {**BODY, "current_version": 3}),
    )
    assert isinstance(conflict, Conflict)
    assert conflict.existing_lease == {"lease_id": "l"}
    assert isinstance(stale, Stale)
    assert stale.current_version == 3
    other = error_of(412, {**BODY, "current_version": "x"})
    assert isinstance(other, Stale)
    assert other.current_version is None


def test_exception_classes_are_separate_and_unique() -> None:
    assert not issubclass(RegistryFailure, RegistryRefusal)
    here, there = (
        {
            name
            for name, value in vars(module).items()
            if isinstance(value, type) and value.__module__ == module.__name__
        }
        for module in (registry_errors, errors)
    )
    assert "Stale" in here
    assert here & there == set()
