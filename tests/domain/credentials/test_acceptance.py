from lifesign.domain.credentials.acceptance import (
    MAX_DETAIL_CHARS,
    MAX_PLACES,
    MIN_KEPT_SECONDS,
    CredentialState,
    CredentialStatus,
    CredentialUse,
)
from lifesign.domain.credentials.request_scope import CredentialScope

WORKS, REJECTED = CredentialState.WORKS, CredentialState.CREDENTIALS_REJECTED
URL = "https://agents.acme.example/a"


class Now:
    """A clock that is wound by hand."""

    def __init__(self) -> None:
        self.at_s = 1_000.0

    def __call__(self) -> float:
        return self.at_s


def test_credential_works_after_each_refusing_url_accepted_it() -> None:
    use = CredentialUse(Now(), 300)
    use.note(URL, REJECTED)
    use.note("https://agents.acme.example/b", WORKS)
    assert use.state is REJECTED
    use.note(URL, CredentialState.TOKEN_ERROR)
    assert use.state == "token_error"
    use.note(URL, WORKS)
    assert use.state == "works"


def test_latest_answer_decides_the_state_of_a_credential() -> None:
    use = CredentialUse(Now(), 300)
    use.note_success()
    assert (use.has_faults, use.state) == (False, "works")
    use.note(URL, REJECTED)
    assert (use.has_faults, use.state) == (True, "credentials_rejected")
    use.note(URL, WORKS)
    assert (use.has_faults, use.state) == (False, "works")


def test_an_answer_counts_for_three_intervals() -> None:
    now = Now()
    use = CredentialUse(now, 1_000)
    use.note(URL, REJECTED)
    now.at_s += 2_000
    use.note("https://agents.acme.example/b", WORKS)
    now.at_s += 1_001
    # The place that refused it is not asked any more.
    assert use.state is WORKS
    now.at_s += 2_000
    assert use.state is None


def test_status_has_the_time_since_the_credential_worked() -> None:
    now = Now()
    use = CredentialUse(now, 300)
    scope = CredentialScope(name="acme", origin="https://agents.acme.example")
    assert use.status(scope).worked_s is None
    use.note_success()
    now.at_s += MIN_KEPT_SECONDS + 1
    assert (use.state, use.status(scope).worked_s) == (None, MIN_KEPT_SECONDS + 1)
    use.note(URL, REJECTED)
    assert use.status(scope).worked_s == MIN_KEPT_SECONDS + 1
    use.note_change()
    assert use.status(scope).worked_s is None


def test_faults_of_targets_of_another_prober_do_not_count() -> None:
    use = CredentialUse(Now(), 300)
    for name in "ab":
        use.note(f"{URL}/{name}", REJECTED, target=f"https://{name}.example/")
    use.forget_targets({"https://a.example/", "https://c.example/"})
    assert use.state is REJECTED
    use.forget_targets({"https://b.example/"})
    assert use.state is None


def test_refused_credential_is_remembered_for_a_minimum_time() -> None:
    now = Now()
    use = CredentialUse(now, 0.5)
    use.note(URL, REJECTED)
    now.at_s += MIN_KEPT_SECONDS
    assert use.state is REJECTED


def test_new_secret_works_once_the_url_that_refused_the_former_one_accepts_it() -> None:
    use = CredentialUse(Now(), 300)
    use.note_success()
    use.note_change()
    states = [use.state]
    use.note(URL, REJECTED)
    use.note_change()
    use.note("https://agents.acme.example/card", WORKS)
    states.append(use.state)
    use.note(URL, WORKS)
    assert [*states, use.state] == [None, REJECTED, WORKS]


def test_a_fault_begins_with_its_first_answer_and_has_the_last_detail() -> None:
    now = Now()
    use, scope = CredentialUse(now, 300), CredentialScope(name="a", origin="https://a.example", path="/")
    use.note(URL, WORKS)
    for detail in ("HTTP 401", f"HTTP 403\n{'x' * MAX_DETAIL_CHARS}"):
        now.at_s += 10
        use.note(URL, REJECTED, detail)
    status = use.status(scope)
    assert (status.state, status.fault_s) == (REJECTED, 10)
    assert status.detail is not None
    assert status.detail.startswith("HTTP 403?x")
    assert len(status.detail) == MAX_DETAIL_CHARS
    use.note(URL, WORKS)
    assert use.status(scope) == CredentialStatus(scope=scope, state=WORKS, worked_s=0)


def test_the_number_of_places_is_bounded() -> None:
    use = CredentialUse(Now(), 300)
    for number in range(MAX_PLACES + 10):
        use.note(f"https://agents.acme.example/{number}", REJECTED)
    assert len(use._faults) == MAX_PLACES
    for number in range(10, MAX_PLACES + 10):
        use.note(f"https://agents.acme.example/{number}", WORKS)
    assert use.state is WORKS
