import gc
import subprocess
import sys
from collections.abc import Iterator

import pytest

from lifesign.serving.garbage_collection import YOUNG_OBJECTS, rarely_collected


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def test_garbage_collection_is_less_frequent_while_serving() -> None:
    gc.set_threshold(700, 10, 10)
    with rarely_collected():
        assert gc.get_threshold() == (YOUNG_OBJECTS, 10, 10)
    assert gc.get_threshold() == (700, 10, 10)


@pytest.mark.parametrize("chosen", [0, 2 * YOUNG_OBJECTS])
def test_rarer_collection_of_the_user_is_kept(chosen: int) -> None:
    gc.set_threshold(chosen, 10, 10)
    with rarely_collected():
        assert gc.get_threshold() == (chosen, 10, 10)


@pytest.mark.parametrize(("call", "expected"), [
    ("", ["at exit", "collected"]),
    ("skip_last_collection()", ["at exit"]),
])  # fmt: skip
def test_process_ends_without_a_last_collection(call: str, expected: list[str]) -> None:
    program = f"""
import atexit
import sys
from lifesign.serving.garbage_collection import skip_last_collection

class Cycle:
    def __init__(self):
        self.itself = self

    def __del__(self, write=sys.stdout.write):
        write("collected\\n")

cycle = Cycle()
atexit.register(print, "at exit")
{call}
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines() == expected
