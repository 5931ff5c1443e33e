import pytest

from lifesign.client import RegistryClient
from lifesign.client.registry_errors import NotFound, Unprocessable


async def test_opt_out_is_requested_shown_and_withdrawn(client: RegistryClient) -> None:
    asked = await client.opt_outs.ask("agent.example")
    assert (asked.origin, asked.proven_at) == ("https://agent.example", None)
    assert asked.token.startswith("aho_")
    assert [one.token for one in (await client.opt_outs.list()).opt_outs] == [asked.token]
    await client.opt_outs.withdraw("https://agent.example/card")
    assert (await client.opt_outs.list()).total == 0
    with pytest.raises(NotFound):
        await client.opt_outs.withdraw("agent.example")
    with pytest.raises(Unprocessable):
        await client.opt_outs.ask("ftp://agent.example")
