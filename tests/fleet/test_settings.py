from collections.abc import Mapping

import pytest
from tests.fleet.settings import DEFAULTS, server_environment, variables

from lifesign.cli.options.duration import read_duration
from lifesign.registry.settings import RegistrySettings


def settings_in(environment: Mapping[str, str]) -> dict[str, float]:
    """Return the settings that variables stand for, by their names in Python."""
    names = {variable: name for name, variable in variables().items()}
    return {names[variable]: read_duration(value) for variable, value in environment.items()}


@pytest.mark.parametrize("factor", [1, 10, 30])
def test_server_accepts_thresholds_divided_by_the_time_factor(factor: float) -> None:
    scaled = settings_in(server_environment(factor))
    settings = RegistrySettings.read(**scaled)
    for name in scaled:
        assert getattr(settings, name) == pytest.approx(getattr(DEFAULTS, name) / factor)


def test_thresholds_stay_above_their_minimum() -> None:
    assert RegistrySettings.read(**settings_in(server_environment(1e6))).mass_exit_cadence_seconds == 1
