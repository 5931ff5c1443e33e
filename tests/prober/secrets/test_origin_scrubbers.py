from yarl import URL

from lifesign.domain.credentials.secret import NO_SECRETS, REMOVED
from lifesign.prober.secrets.origin_scrubbers import OriginScrubbers

A, B, C = (URL(f"https://{name}.example/x") for name in "abc")


class Issued:
    """Secrets that change; counts how often they are asked for."""

    def __init__(self, *secrets: str) -> None:
        self.secrets = list(secrets)
        self.asked = 0

    def __call__(self) -> list[str]:
        self.asked += 1
        return [*self.secrets]


def of_origins(**secrets: Issued) -> OriginScrubbers:
    return OriginScrubbers({f"https://{name}.example": [each] for name, each in secrets.items()})


def test_a_new_secret_changes_only_what_removes_it() -> None:
    one, other = Issued("secret-of-a-1"), Issued("secret-of-b-1")
    scrubbers = of_origins(a=one, b=other)
    before = [scrubbers.of(url) for url in (A, B)]
    one.secrets.insert(0, "secret-of-a-2")
    scrubbers.note_change()
    assert scrubbers.of(B) is before[1]
    assert scrubbers.of(A) is not before[0]
    assert scrubbers.of(A).secrets == {"secret-of-a-1", "secret-of-a-2"}


def test_nothing_is_built_before_it_is_used() -> None:
    issued = Issued("secret-of-a-1")
    scrubbers = of_origins(a=issued)
    for _ in range(3):
        scrubbers.note_change()
    assert issued.asked == 0
    assert scrubbers.of(A) is scrubbers.of(A)
    assert issued.asked == 1


def test_origins_with_the_same_secrets_share_what_removes_them() -> None:
    scrubbers = of_origins(a=Issued("shared-secret"), b=Issued("shared-secret"))
    assert scrubbers.of(A) is scrubbers.of(B) is scrubbers.of(A, B)


def test_secrets_of_several_origins_are_removed_together() -> None:
    one, other = Issued("secret-of-a-1"), Issued("secret-of-b-1")
    scrubbers = of_origins(a=one, b=other, c=Issued("secret-of-c-1"))
    both, with_c = scrubbers.of(A, B), scrubbers.of(B, C)
    assert "secret-of" not in both.clean_text("secret-of-a-1 secret-of-b-1")
    one.secrets.insert(0, "new-secret-of-a-2")
    scrubbers.note_change()
    assert scrubbers.of(B, C) is with_c
    assert scrubbers.of(B, A) is scrubbers.of(A, B) is not both
    assert scrubbers.of(A, B).clean_text("<new-secret-of-a-2>") == f"<{REMOVED}>"


def test_an_origin_without_secrets_has_no_effect() -> None:
    scrubbers = of_origins(a=Issued("secret-of-a-1"))
    assert scrubbers.of(B) is NO_SECRETS
    assert scrubbers.of(URL("https://A.example:443/")).secrets == {"secret-of-a-1"}
