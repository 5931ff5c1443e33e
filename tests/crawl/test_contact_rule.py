"""The rule that a crawl of public addresses has a contact."""

from pathlib import Path
from typing import Any

import pytest

from lifesign.crawl.contact_rule import CONTACT_EXAMPLE, require_contact
from lifesign.errors import InvalidValue
from lifesign.prober.definition.models import ProbeDefinition

CANARIES = [f"https://c{number}.test/" for number in range(5)]


def definition(directory: Path, **settings: Any) -> ProbeDefinition:
    given = {"name": "test", "networks": {"allow": ["127.0.0.0/8", "10.0.0.0/8"]}, **settings}
    return ProbeDefinition.model_validate(given, context={"directory": directory})


@pytest.mark.parametrize(
    "settings",
    [
        {"targets": ["http://127.0.0.1:9/", "http://localhost:9/", "http://10.1.2.3/"]},
        {"targets": ["http://192.168.1.1/", "http://agent.invalid/"]},
        {"directories": [{"url": "http://127.0.0.1:9/list"}]},
        {"directories": [{"file": "local.txt"}]},
        {"directories": [{"file": "absent.txt"}]},
        {"targets": ["https://agent.example"], "contact": CONTACT_EXAMPLE},
        {
            "targets": ["http://10.1.2.3/"],
            "canaries": {"10.0.0.0/8": ["http://10.1.2.4/", "http://10.1.2.5/"]},
        },
    ],
)
async def test_local_crawl_needs_no_contact(settings: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "local.txt").write_text("http://127.0.0.1:9/\nhttp://10.9.9.9/\n")
    await require_contact(definition(tmp_path, **settings))


@pytest.mark.parametrize(
    ("settings", "public"),
    [
        ({"targets": ["http://127.0.0.1:9/", "agent.example"]}, "https://agent.example/"),
        ({"targets": ["http://93.184.215.14/"]}, "http://93.184.215.14/"),
        ({"directories": [{"url": "https://directory.example/"}]}, "https://directory.example/"),
        ({"directories": [{"file": "mixed.txt"}]}, "https://listed.example/"),
        ({"targets": ["http://127.0.0.1:9/"], "canaries": {"public_ipv4": CANARIES}}, CANARIES[0]),
    ],
)
async def test_public_crawl_requires_contact(settings: dict[str, Any], public: str, tmp_path: Path) -> None:
    (tmp_path / "mixed.txt").write_text("http://127.0.0.1:9/\nlisted.example\n")
    with pytest.raises(InvalidValue) as caught:
        await require_contact(definition(tmp_path, **settings))
    assert caught.value.name == "contact"
    assert public in caught.value.expected
    assert CONTACT_EXAMPLE in caught.value.expected


async def test_project_page_replaces_a_contact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lifesign.prober.definition.models.PROJECT_URL", "https://project.example/")
    await require_contact(definition(tmp_path, targets=["agent.example"]))
