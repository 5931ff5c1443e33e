from lifesign.domain.common.batch_size import QUICK_SECONDS, SLOW_SECONDS, BatchSize


def test_size_is_halved_by_each_failure_down_to_the_smallest() -> None:
    size = BatchSize(500, smallest=50)
    sizes = []
    for _ in range(5):
        size.failed(size.most)
        sizes.append(size.most)
    assert sizes == [250, 125, 62, 50, 50]


def test_failures_of_calls_at_the_same_time_count_once() -> None:
    size = BatchSize(500)
    for _ in range(3):
        size.failed(500)
    assert size.most == 250
    size.failed(250)
    size.failed(500)
    assert size.most == 125


def test_size_grows_after_quick_full_calls_only() -> None:
    size = BatchSize(500)
    size.failed(200)
    size.succeeded(99, 0.0)
    assert size.most == 100
    size.succeeded(100, SLOW_SECONDS)
    assert size.most == 100
    size.succeeded(100, QUICK_SECONDS)
    assert size.most == 111
    size.succeeded(111, 0.0)
    assert size.most == 222
    for _ in range(3):
        size.succeeded(size.most, 0.0)
    assert size.most == 500
