from dataclasses import replace
from typing import Any

from lifesign.domain.observation.probe_memory import ProbeMemory
from lifesign.domain.observation.results import InconclusiveReason, ResultClass
from lifesign.domain.probing.cadence import Cadence
from lifesign.domain.targets.target import StatedKind, target_id
from lifesign.prober.registry_exchange.ledger import ShardClaim, TargetEntry, TargetPage
from lifesign.prober.worker.shards import ApplyResult, OwnedShards, Shard

A, B, C = (f"https://{name}.example/" for name in "abc")


def claim(shard: int, token: int = 1, expires_at_s: float = 300.0) -> ShardClaim:
    return ShardClaim(shard=shard, fencing_token=token, expires_at_s=expires_at_s)


def entry(
    url: str,
    *,
    probed_at_s: float | None = None,
    recheck_at_s: float | None = None,
    alive_at_s: float | None = None,
) -> TargetEntry:
    memory = ProbeMemory(probed_at_s=probed_at_s, alive_at_s=alive_at_s)
    return TargetEntry(subject_id=target_id(url), url=url, memory=memory, recheck_at_s=recheck_at_s)


def page(*entries: TargetEntry, version: int = 1, gone: tuple[str, ...] = ()) -> TargetPage:
    return TargetPage(entries=entries, gone=tuple(target_id(url) for url in gone), version=version)


def urls(applied: ApplyResult) -> list[str]:
    return [slot.url for slot, _ in applied.to_plan]


def with_one_shard(*entries: TargetEntry) -> tuple[OwnedShards, Shard]:
    holdings = OwnedShards()
    ((shard,), _) = holdings.take([claim(7)])
    holdings.apply(shard, page(*entries))
    return holdings, shard


def test_shard_is_probed_after_its_targets_are_read_until_its_claim_ends() -> None:
    holdings = OwnedShards()
    ((shard,), lost) = holdings.take([claim(7)])
    assert (lost, holdings.tokens(), holdings.known().versions) == ([], {7: 1}, {7: 0})
    assert not shard.is_owned(0.0)
    applied = holdings.apply(shard, page(entry(A), entry(B), version=12))
    assert (urls(applied), holdings.targets, holdings.known().versions) == ([A, B], 2, {7: 12})
    assert shard.is_owned(299.9)
    assert not shard.is_owned(300.0)


def test_invalid_memory_is_not_used() -> None:
    _, shard = with_one_shard(entry(A))
    slot = shard.slots[target_id(A)]
    slot.remember(ProbeMemory(alive_at_s=5.0).model_copy(update={"card_digest": "REMOVED-SECRET"}))
    assert slot.recall() == ProbeMemory()


def test_later_stated_kind_is_adopted() -> None:
    holdings, shard = with_one_shard(entry(A))
    assert shard.slots[target_id(A)].kind is None
    holdings.apply(shard, page(replace(entry(A), kind=StatedKind.MCP), version=2))
    assert shard.slots[target_id(A)].kind is StatedKind.MCP


def test_target_knows_whether_another_target_has_its_origin() -> None:
    alone, mcp, agent = "https://a.example:444/a/mcp", "https://a.example/a/mcp", "https://a.example/"
    _, shard = with_one_shard(entry(alone), entry(mcp), entry(agent))
    shares = {slot.url: slot.shares_origin() for slot in shard.slots.values()}
    assert shares == {alone: False, mcp: True, agent: True}


def test_a_renewal_changes_nothing_but_the_deadline() -> None:
    holdings, shard = with_one_shard(entry(A))
    (held, lost) = holdings.take([claim(7, expires_at_s=500.0)])
    assert (held, lost) == ([shard], [])
    assert shard.is_owned(400.0)


def test_shard_with_another_token_is_read_again_before_use() -> None:
    holdings, shard = with_one_shard(entry(A), entry(B))
    slot = shard.slots[target_id(A)]
    holdings.take([claim(7, token=2)])
    assert (shard.is_owned(0.0), holdings.tokens(), holdings.known().versions) == (False, {7: 2}, {7: 0})
    applied = holdings.apply(shard, page(entry(A), entry(C)))
    assert [gone.url for gone in applied.gone] == [B]
    assert shard.slots[target_id(A)] is slot
    assert (shard.is_owned(0.0), holdings.targets) == (True, 2)


def test_shard_missing_from_a_claim_is_lost_with_its_targets() -> None:
    holdings, shard = with_one_shard(entry(A))
    slot = shard.slots[target_id(A)]
    held, lost = holdings.take([claim(8)])
    assert ([one.number for one in held], lost) == ([8], [shard])
    assert (holdings.targets, slot.is_gone, shard.is_owned(0.0)) == (0, True, False)
    assert holdings.lose(7) is None


def test_shard_changes_are_merged_into_known_targets() -> None:
    holdings, shard = with_one_shard(entry(A), entry(B))
    a = shard.slots[target_id(A)]
    applied = holdings.apply(shard, page(entry(B, recheck_at_s=50.0), entry(C), version=3, gone=(A,)))
    assert (urls(applied), applied.gone) == ([B, C], [a])
    assert (a.is_gone, shard.slots[target_id(B)].recheck_at_s, holdings.targets) == (True, 50.0, 2)


def test_unreported_results_are_not_overwritten_by_the_ledger() -> None:
    holdings, shard = with_one_shard(entry(A, probed_at_s=10.0))
    slot = shard.slots[target_id(A)]
    slot.remember(ProbeMemory(probed_at_s=20.0, failures_in_row=3))
    applied = holdings.apply(shard, page(entry(A, probed_at_s=10.0, recheck_at_s=15.0), version=2))
    assert applied.overtaken == []
    assert applied.to_plan == [(slot, ProbeMemory(probed_at_s=20.0, failures_in_row=3))]


def test_failure_of_a_target_with_an_alive_agent_needs_a_witness() -> None:
    holdings, shard = with_one_shard(entry(A, probed_at_s=10.0))
    slot = shard.slots[target_id(A)]
    slot.remember(ProbeMemory(probed_at_s=20.0, failures_in_row=3))
    applied = holdings.apply(shard, page(entry(A, probed_at_s=10.0, alive_at_s=15.0), version=2))
    assert applied.to_plan == [(slot, ProbeMemory(probed_at_s=20.0, failures_in_row=3, alive_at_s=15.0))]
    assert slot.recall().alive_at_s == 15.0


def test_later_result_of_another_prober_wins() -> None:
    holdings, shard = with_one_shard(entry(A, probed_at_s=10.0))
    slot = shard.slots[target_id(A)]
    slot.remember(ProbeMemory(probed_at_s=20.0))
    holdings.take([claim(7, token=2)])
    applied = holdings.apply(shard, page(entry(A, probed_at_s=30.0)))
    assert applied.overtaken == [slot]
    assert slot.recall() == ProbeMemory(probed_at_s=30.0)


def test_memory_survives_json() -> None:
    _, shard = with_one_shard(entry(A))
    slot = shard.slots[target_id(A)]
    assert (slot.memory, slot.recall()) == (None, ProbeMemory())
    memory = ProbeMemory(probed_at_s=1.5, result=ResultClass.GATED, card_etag='"x"')
    slot.remember(memory)
    assert slot.recall() == memory
    slot.remember(ProbeMemory())
    assert slot.memory is None


def test_registered_agent_is_reported_by_id_and_a_target_by_url() -> None:
    holdings, shard = with_one_shard(entry(A))
    # Owners choose agent ids, and one may look like a target id.
    names = ["agent_1", "tgt_mine"]
    agents = [TargetEntry(subject_id=name, url=B, memory=ProbeMemory()) for name in names]
    holdings.apply(shard, TargetPage(entries=agents, version=2))
    seen = [
        shard.slots[name].not_measured(0.0, InconclusiveReason.NOT_PROBED, "why")
        for name in (target_id(A), *names)
    ]
    assert [(one.target_url, one.agent_id) for one in seen] == [(A, None), *((None, name) for name in names)]


def test_a_target_is_counted_as_unknown_once_its_last_measured_result_is_too_old() -> None:
    """The prober's own network is cut: three intervals later no agent is called alive any more."""
    ok, unread = ResultClass.OK, ResultClass.NOT_MEASURED
    alive: dict[str, Any] = {"result": ok, "alive_at_s": 1000.0}
    holdings, shard = with_one_shard(entry(A))
    slot = shard.slots[target_id(A)]
    slot.note(ok, ProbeMemory(**alive, probed_at_s=1000.0), 300.0)
    slot.note(unread, ProbeMemory(**alive, probed_at_s=1900.0), 300.0)
    assert holdings.results() == {ok: 1}
    slot.note(unread, ProbeMemory(**alive, probed_at_s=1901.0), 300.0)
    assert holdings.results() == {unread: 1}
    slot.note(ok, ProbeMemory(result=ok, alive_at_s=2200.0, probed_at_s=2200.0), 300.0)
    assert holdings.results() == {ok: 1}


def test_targets_are_counted_by_their_latest_measured_result() -> None:
    ok, refused, unread = ResultClass.OK, ResultClass.REFUSED, ResultClass.NOT_MEASURED
    holdings, shard = with_one_shard(entry(A), entry(B, probed_at_s=5.0), entry(C))
    assert holdings.results() == {None: 2, unread: 1}
    slot = shard.slots[target_id(A)]
    slot.note(ok, ProbeMemory(), 300.0)
    slot.note(refused, ProbeMemory(), 300.0)
    shard.slots[target_id(B)].note(ok, ProbeMemory(), 300.0)
    assert holdings.results() == {None: 1, refused: 1, ok: 1}
    slot.note(unread, ProbeMemory(), 300.0)
    assert holdings.results() == {None: 1, refused: 1, ok: 1}, "an unmeasured probe replaced a result"
    slot.note(unread, ProbeMemory(is_disallowed_by_robots=True), 300.0)
    assert holdings.results() == {None: 1, unread: 1, ok: 1}, "a disallowed target kept its last result"
    slot.note_known(ProbeMemory(result=ok, probed_at_s=9.0))
    assert holdings.results() == {None: 1, ok: 2}
    holdings.apply(shard, page(version=2, gone=(A,)))
    assert holdings.results() == {None: 1, ok: 1}
    holdings.take([])
    assert holdings.results() == {}


def test_results_are_numbered_from_one_under_each_token() -> None:
    holdings, shard = with_one_shard(entry(A))
    assert [shard.next_number(), shard.next_number()] == [1, 2]
    holdings.take([claim(7, expires_at_s=500.0)])
    assert shard.next_number() == 3
    holdings.take([claim(7, token=2)])
    assert shard.next_number() == 1


def test_a_target_keeps_its_own_thresholds_and_its_confirmation() -> None:
    own = replace(entry(A), thresholds_s=(60.0, 120.0), confirmed_at_s=50.0)
    holdings, shard = with_one_shard(own, entry(B))
    slot, other = shard.slots[target_id(A)], shard.slots[target_id(B)]
    usual = Cadence()
    assert slot.cadence(usual).dead_after_s == 120.0
    assert (other.cadence(usual), slot.confirmed_at_s, other.confirmed_at_s) == (usual, 50.0, None)
    holdings.apply(shard, page(replace(entry(A), confirmed_at_s=60.0), version=2))
    assert (slot.confirmed_at_s, slot.cadence(usual)) == (60.0, usual)


def agent(url: str, *, entered_at_s: float | None = None, memory: ProbeMemory | None = None) -> TargetEntry:
    """Return an agent that is probed at its own URL."""
    return TargetEntry(
        subject_id="agent-1", url=url, memory=memory or ProbeMemory(), entered_at_s=entered_at_s
    )


def test_moved_agent_is_probed_without_its_former_memory() -> None:
    holdings, shard = with_one_shard(agent(A + "old"))
    before = shard.slots["agent-1"]
    before.remember(ProbeMemory(probed_at_s=90.0, card_url=A + "old/card", not_before_s=9_000.0))
    applied = holdings.apply(shard, page(agent(A + "new", entered_at_s=100.0), version=2))
    now = shard.slots["agent-1"]
    assert (now.url, now.recall()) == (A + "new", ProbeMemory())
    assert (before.is_gone, applied.gone, applied.overtaken, holdings.targets) == (
        True,
        [before],
        [before],
        1,
    )
    assert sum(holdings.results().values()) == 1


def test_agent_that_registers_again_is_probed_with_the_memory_of_the_ledger() -> None:
    holdings, shard = with_one_shard(agent(A))
    shard.slots["agent-1"].remember(ProbeMemory(probed_at_s=90.0, failures_in_row=60))
    anew = ProbeMemory(probed_at_s=90.0, alive_at_s=100.0)
    holdings.apply(shard, page(agent(A, entered_at_s=100.0, memory=anew), version=2))
    assert shard.slots["agent-1"].recall() == anew
    # The same page again is no new beginning.
    slot = shard.slots["agent-1"]
    slot.remember(ProbeMemory(probed_at_s=200.0, failures_in_row=1))
    assert holdings.apply(shard, page(agent(A, entered_at_s=100.0, memory=anew), version=3)).gone == []
    assert slot.recall().failures_in_row == 1


def test_agent_that_moves_twice_between_polls_leaves_no_stale_entry() -> None:
    holdings = OwnedShards()
    ((first, third), _) = holdings.take([claim(7), claim(9)])
    holdings.apply(first, page(agent(A)))
    slot = first.slots["agent-1"]
    # Another worker has the second shard, and the first one is not read.
    applied = holdings.apply(third, page(agent(C, entered_at_s=100.0), version=3))
    assert (slot.is_gone, applied.gone, holdings.targets) == (True, [slot], 1)
    assert [one.url for one in holdings.slots()] == [C]
    assert (sum(first.results.values()), sum(third.results.values())) == (0, 1)


def test_later_activation_in_the_registry_updates_the_alive_time() -> None:
    holdings, shard = with_one_shard(entry(A, probed_at_s=100.0, alive_at_s=50.0))
    holdings.apply(shard, page(entry(A, probed_at_s=100.0, alive_at_s=80.0), version=2))
    assert shard.slots[target_id(A)].recall().alive_at_s == 80.0
    holdings.apply(shard, page(entry(A, probed_at_s=100.0, alive_at_s=60.0), version=3))
    assert shard.slots[target_id(A)].recall().alive_at_s == 80.0
