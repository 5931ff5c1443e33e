import pytest
from tests.fleet.settings import DEFAULTS, server_environment

from lifesign.cli.commands.serve import PREFIX
from lifesign.registry.settings import RegistrySettings

# Counts, ratios and limits of requests; and durations that no verdict depends on.
UNSCALED = {
    "answer_seconds", "command_seconds",
    "sweep_seconds",
}  # fmt: skip


@pytest.mark.parametrize("factor", [1, 10, 30])
def test_the_server_takes_its_thresholds_divided_by_the_factor(factor: float) -> None:
    scaled = {name.removeprefix(PREFIX).lower(): value for name, value in server_environment(factor).items()}
    settings = RegistrySettings.read(**{name: float(value) for name, value in scaled.items()})
    for name in scaled:
        assert getattr(settings, name) == pytest.approx(getattr(DEFAULTS, name) / factor)
    durations = {name for name in RegistrySettings.model_fields if name.endswith("_seconds")}
    assert durations - UNSCALED == scaled.keys()


def test_no_threshold_falls_below_its_least() -> None:
    values = {
        name.removeprefix(PREFIX).lower(): float(value) for name, value in server_environment(1e6).items()
    }
    assert RegistrySettings.read(**values).mass_exit_cadence_seconds == 1
