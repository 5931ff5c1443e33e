"""Recorders of one process. Forked workers: test_shared_windows_workers.py."""

import weakref

from tests.support.recording import outcomes

from lifesign import AgentHealth
from lifesign.middleware.process_recorders import _reset_in_child, living_recorders


def test_living_recorders_are_sorted_by_agent() -> None:
    mine = {name: AgentHealth(agent_id=name) for name in ("c", "a", "b")}
    found = [recorder for recorder in living_recorders() if recorder in mine.values()]
    assert found == [mine["a"], mine["b"], mine["c"]]


def test_recorder_that_is_no_longer_used_is_left_out_at_once() -> None:
    """A reference cycle would keep it in the metrics until the next garbage collection."""
    recorder = AgentHealth(agent_id="agent")
    recorder.record(latency_ms=5)
    recorder.document()
    reference = weakref.ref(recorder)
    del recorder
    assert reference() is None


def test_recorders_start_again_in_a_child() -> None:
    recorders = [AgentHealth(agent_id=name) for name in ("a", "b")]
    for recorder in recorders:
        recorder.record(latency_ms=5)
    _reset_in_child()
    assert [outcomes(recorder) for recorder in recorders] == [{}, {}]
