import os
from pathlib import Path

import pytest
from tests.support.probing import definition

from lifesign.cli.options.credential_file import with_credentials
from lifesign.domain.errors import InvalidFile
from lifesign.errors import InvalidValue

LAB = {"name": "lab", "origin": "https://lab.example", "bearer": {"env": "LAB_TOKEN"}}


def test_credentials_of_a_file_replace_those_of_the_definition(tmp_path: Path) -> None:
    file = tmp_path / "credentials.yml"
    file.write_text("credentials: [{name: box, origin: 'https://box.example', bearer: {file: box.token}}]\n")
    given = definition(credentials=[LAB])
    (credential,) = with_credentials(given, file).credentials
    assert credential.name == "box"
    # Relative paths are relative to the directory of the credential file.
    assert credential.source.file == tmp_path / "box.token"
    assert with_credentials(given, None) is given


def test_variables_of_replaced_credentials_leave_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "credentials.yml"
    file.write_text("credentials: [{name: box, origin: 'https://box.example', bearer: {env: BOX_TOKEN}}]\n")
    for name in ("LAB_TOKEN", "BOX_TOKEN"):
        monkeypatch.setenv(name, "secret-of-the-lab")
    both = {"name": "both", "origin": "https://lab.example", "path": "/a", "bearer": {"env": "BOX_TOKEN"}}
    with_credentials(definition(credentials=[LAB, both]), file)
    assert ("LAB_TOKEN" in os.environ, "BOX_TOKEN" in os.environ) == (False, True)


def test_a_file_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue):
        with_credentials(definition(), tmp_path / "none")
    file = tmp_path / "credentials.yml"
    file.write_text("credentials: []\n")
    with pytest.raises(InvalidFile):
        with_credentials(definition(), file)
