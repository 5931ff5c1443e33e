"""Properties: how many examples each test draws, and from which seed. A plugin of pytest.

Plain `pytest` and `make test` use the profile `fixed`: 30 examples, the same in every run, on every machine,
in any order and from any directory. `make faults` uses the profile `random`: 1,000 examples, from a new seed.
`make mutants` uses the profile `mutants`: the examples of `fixed`, and a failing one is not made smaller.
"""

import random
import secrets
from collections.abc import Generator
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

_FIXED_SEED: Final = 20_261_120
_FIXED_EXAMPLES: Final = 30
_RANDOM_EXAMPLES: Final = 1_000
_WEIGHT: Final = 100
"""The weight of a test that draws as many examples as most do."""
_LEAST_EXAMPLES: Final = 10
_SEED: Final = "hypothesis_seed"


def examples(number: int) -> int:
    """Return how many examples a test draws under the current profile if `number` is its weight.

    Most tests weigh 100; one that takes longer weighs less. None draws fewer than 10, or than its weight if
    that is less. Every `max_examples` goes through here, so that the profiles scale all tests alike.
    """
    return max(min(number, _LEAST_EXAMPLES), number * settings().max_examples // _WEIGHT)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Decide what this run draws, before the plugin of Hypothesis reads the profile and the seed."""
    _register_profiles()
    if not _is_random(config):
        _draw_no_constants_of_the_program()
        return
    if config.option.hypothesis_seed is None:
        # A process of pytest-xdist is given the seed of the one that started it.
        given = getattr(config, "workerinput", {}).get(_SEED)
        config.option.hypothesis_seed = given or str(secrets.randbelow(2**32))
    if not config.option.hypothesis_seed.isdecimal():
        raise pytest.UsageError(f"the seed must be a whole number; got {config.option.hypothesis_seed!r}")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Give the seed to a process of pytest-xdist."""
    node.workerinput[_SEED] = node.config.option.hypothesis_seed


def pytest_report_header(config: pytest.Config) -> str | None:
    """Name the seed of a random run."""
    return _how_to_repeat(config) if _is_random(config) else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Name the seed of a random run beside each failure."""
    report = yield
    if report.failed and _is_random(item.config):
        report.sections.append(("Seed", _how_to_repeat(item.config)))
    return report


@pytest.fixture
def seed(pytestconfig: pytest.Config) -> int:
    """The seed of this run, for tests that draw values without Hypothesis."""
    return int(pytestconfig.getoption("hypothesis_seed")) if _is_random(pytestconfig) else _FIXED_SEED


@pytest.fixture(autouse=True)
def chance_from_the_seed(seed: int) -> None:
    """Let each test begin with the same random numbers, whatever ran before it."""
    random.seed(seed)


def _register_profiles() -> None:
    common: dict[str, Any] = {
        # If the environment has `CI`, Hypothesis' own default is another one.
        "parent": settings.get_profile("default"),
        # The time of an example depends on the load of the machine.
        "deadline": None,
        "suppress_health_check": [HealthCheck.too_slow],
    }
    settings.register_profile("fixed", **common, derandomize=True, max_examples=_FIXED_EXAMPLES)
    settings.register_profile(
        "mutants", settings.get_profile("fixed"), phases=[Phase.explicit, Phase.generate]
    )
    settings.register_profile("random", **common, max_examples=_RANDOM_EXAMPLES, print_blob=True)
    settings.load_profile("fixed")


def _is_random(config: pytest.Config) -> bool:
    return bool(config.getoption("hypothesis_profile") == "random")


def _how_to_repeat(config: pytest.Config) -> str:
    seed = config.getoption("hypothesis_seed")
    return f"random examples; to repeat this run: SEED={seed} make faults"


def _draw_no_constants_of_the_program() -> None:
    """Stop Hypothesis from drawing numbers and texts that it found in our source files.

    It reads the modules that are loaded at that moment, unless their path has a part named `test` or `tests`.
    So the examples would depend on the tests before and on the directory of the checkout.
    """
    assert callable(providers._get_local_constants)
    providers._get_local_constants = Constants
