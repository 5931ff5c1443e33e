from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from tests.prober.evidence.test_observation_file import observed, read
from tests.support.memory_ledger import batch_of

from lifesign.domain.observation.probe_memory import ProbeMemory
from lifesign.domain.observation.results import Observation
from lifesign.prober.evidence.filed_ledger import FiledLedger
from lifesign.prober.evidence.observation_file import ResultsFile
from lifesign.prober.evidence.results_writer import ResultsWriter
from lifesign.prober.registry_exchange.ledger import (
    NO_WITNESS_REPORT,
    Granted,
    LedgerUnreachable,
    ProbeReport,
    ReportAnswer,
    ShardBatch,
    ShardClaim,
    TargetPage,
    WitnessNews,
    WitnessReport,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "results.jsonl"


@pytest.fixture
def writer(path: Path) -> Iterator[ResultsWriter]:
    opened = ResultsWriter(ResultsFile(path))
    yield opened
    opened.close()


NEWS = WitnessNews(silent_classes=frozenset({"public_ipv4"}))


class Taking:
    """A ledger that accepts results except those of lost shards, and stores its calls."""

    def __init__(self, lost: Collection[int] = ()) -> None:
        self.lost = lost
        self.asked: list[object] = []
        self.is_unreachable = False

    async def claim(
        self,
        worker: str,
        ttl_s: float,
        held: Mapping[int, int],
        companions: int = 0,
        standing: WitnessReport = NO_WITNESS_REPORT,
    ) -> Granted:
        self.asked.append(("claim", worker, ttl_s, held, companions, standing))
        return Granted(claims=[claim(7)])

    async def targets(self, shard: int, after_version: int | None) -> TargetPage:
        self.asked.append(("targets", shard, after_version))
        return TargetPage(entries=[], version=3)

    living_workers = frozenset({"w"})

    async def changed(self, versions: Mapping[int, int]) -> Collection[int]:
        self.asked.append(("changed", versions))
        return [7]

    async def report(self, batches: Sequence[ShardBatch], interval_s: float) -> ReportAnswer:
        if self.is_unreachable:
            raise LedgerUnreachable("away")
        self.asked.append(("report", len(batches), interval_s))
        return ReportAnswer(lost=self.lost, news=NEWS)

    async def unprobed(self, since_s: float) -> int:
        self.asked.append(("unprobed", since_s))
        return 5

    async def leave(self, worker: str) -> None:
        self.asked.append(("leave", worker))


def claim(shard: int) -> ShardClaim:
    return ShardClaim(shard=shard, fencing_token=1, expires_at_s=1.0)


def batch(shard: int, *observations: Observation) -> ShardBatch:
    reports = [
        ProbeReport(subject_id="tgt_0", observation=observation, memory=ProbeMemory())
        for observation in observations
    ]
    return batch_of(claim(shard), reports)


async def test_results_accepted_by_the_ledger_are_written_to_the_file(
    writer: ResultsWriter, path: Path
) -> None:
    ledger = FiledLedger(Taking(lost=[2]), writer)
    batches = [batch(1, observed(1), observed(2)), batch(2, observed(3)), batch(3, observed(4))]
    assert await ledger.report(batches, 300.0) == ReportAnswer(lost=[2], news=NEWS)
    writer.close()
    assert read(path) == [observed(1), observed(2), observed(4)]


async def test_results_refused_by_the_ledger_are_not_written_to_the_file(
    writer: ResultsWriter, path: Path
) -> None:
    inner = Taking()
    inner.is_unreachable = True
    ledger = FiledLedger(inner, writer)
    with pytest.raises(LedgerUnreachable):
        await ledger.report([batch(1, observed(1))], 300.0)
    inner.is_unreachable = False
    await ledger.report([batch(1, observed(1))], 300.0)
    writer.close()
    assert read(path) == [observed(1)]


@pytest.fixture
def unwritable(writer: ResultsWriter, path: Path) -> ResultsWriter:
    path.unlink()
    path.mkdir()
    return writer


async def test_file_that_cannot_be_written_delays_no_report(unwritable: ResultsWriter) -> None:
    inner, writer = Taking(), unwritable
    ledger = FiledLedger(inner, writer)
    for number in range(3):
        assert await ledger.report([batch(1, observed(number))], 300.0) == ReportAnswer(lost=(), news=NEWS)
    assert inner.asked == [("report", 1, 300.0)] * 3


async def test_other_calls_are_passed_to_the_ledger(writer: ResultsWriter) -> None:
    inner = Taking()
    ledger = FiledLedger(inner, writer)
    standing = WitnessReport(reached_classes=["public_ipv4"])
    assert (await ledger.claim("w", 30.0, {7: 1}, 2, standing)).claims == [claim(7)]
    assert (await ledger.targets(7, 2)).version == 3
    assert await ledger.changed({7: 2}) == [7]
    assert await ledger.unprobed(1.0) == 5
    await ledger.leave("w")
    assert inner.asked == [
        ("claim", "w", 30.0, {7: 1}, 2, standing),
        ("targets", 7, 2),
        ("changed", {7: 2}),
        ("unprobed", 1.0),
        ("leave", "w"),
    ]
