"""Is it getting better or worse? (draft 4.5)"""

from lifesign.domain.health.document import Trend
from lifesign.domain.health.outcome import Samples
from lifesign.domain.health.status import MINIMUM_SAMPLES

TREND_TENTHS = 1
"""A change of the response ratio by more than this many tenths, in either direction, is a trend."""


def calibration_trend(current: Samples, previous: Samples) -> Trend:
    """Return how the response ratio changed from the previous window to the current one.

    `stable` while either has too few samples to be compared. A change of exactly 0.10 is
    stable; compared as whole numbers, since 0.90 - 0.80 > 0.10 in binary fractions.
    """
    if current.total < MINIMUM_SAMPLES or previous.total < MINIMUM_SAMPLES:
        return Trend.STABLE
    # The difference of the two ratios, multiplied by both totals and by ten.
    change = 10 * (current.responses * previous.total - previous.responses * current.total)
    threshold = TREND_TENTHS * current.total * previous.total
    if change > threshold:
        return Trend.IMPROVING
    if -change > threshold:
        return Trend.DECLINING
    return Trend.STABLE
