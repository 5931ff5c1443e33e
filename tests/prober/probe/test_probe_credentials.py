"""Choice of the credential of one request of a probe."""

from typing import Any

import pytest
from yarl import URL

from lifesign.domain.credentials.request_scope import Purpose
from lifesign.prober.definition.credentials import CredentialSettings
from lifesign.prober.probe.probe_credentials import ProbeCredentials
from lifesign.prober.secrets.credential_store import CredentialStore
from lifesign.prober.secrets.secret_reader import Secrets

TARGET = "https://lab.example/agents/a"
RPC = URL("https://rpc.example/a")


def credentials_of(*given: dict[str, Any], is_named: bool = True) -> ProbeCredentials:
    """Return the credentials of a probe of `TARGET`."""
    settings = [CredentialSettings.model_validate({"bearer": {"env": "LAB"}} | each) for each in given]
    store = CredentialStore(settings, Secrets({each.source: "canary-secret" for each in settings}))
    return ProbeCredentials(store, TARGET, is_named=is_named)


def choice(credentials: ProbeCredentials, url: URL, purpose: Purpose, *, has_read_card: bool = True) -> str:
    """Return the name of the credential that is sent, or the reason why it is withheld."""
    credential, withheld = credentials.for_request(url, purpose, has_read_card=has_read_card)
    return withheld or "" if credential is None else credential.name


LAB = {"name": "lab", "origin": "https://lab.example"}
AT_RPC = {"name": "rpc", "origin": "https://rpc.example"}


def test_targets_outside_the_definition_need_a_credential_for_all_targets() -> None:
    listed = credentials_of(LAB, is_named=False)
    assert "the definition names" in choice(listed, URL(TARGET), Purpose.CARD)
    assert listed.received == []
    shared = credentials_of(LAB | {"for_all_targets": True}, is_named=False)
    assert choice(shared, URL(TARGET), Purpose.CARD) == "lab"
    assert [each.name for each in shared.received] == ["lab"]


@pytest.mark.parametrize("purpose", [Purpose.INTERFACE, Purpose.MESSAGE])
def test_interface_gets_a_credential_only_after_its_card_was_read(purpose: Purpose) -> None:
    credentials = credentials_of(AT_RPC | {"card_origins": ["https://lab.example"]})
    assert choice(credentials, RPC, purpose) == "rpc"
    assert "read the card" in choice(credentials, RPC, purpose, has_read_card=False)


def test_interface_at_another_origin_gets_no_credential_of_other_cards() -> None:
    credentials = credentials_of(LAB, AT_RPC)
    assert choice(credentials, RPC, Purpose.INTERFACE).endswith(f"for cards of {TARGET}")


def test_event_stream_can_only_name_urls_with_the_credential_of_the_stream() -> None:
    tools = LAB | {"name": "tools", "path": "/tools"}
    credentials = credentials_of(LAB, tools)
    assert choice(credentials, URL("https://lab.example/messages"), Purpose.ENDPOINT) == "lab"
    assert "the event stream" in choice(credentials, URL("https://lab.example/tools/x"), Purpose.ENDPOINT)


def test_answers_may_quote_the_credentials_that_were_sent() -> None:
    credentials = credentials_of(LAB, AT_RPC)
    sent = credentials.named("rpc")
    for _ in range(2):
        credentials.note_sent(sent)
    assert [each.name for each in credentials.received] == ["lab", "rpc"]
