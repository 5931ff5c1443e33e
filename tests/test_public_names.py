"""The snapshot of the public names agrees with the code. After a change: `make schemas`."""

import ast
import re

from tests.support.repository import REPOSITORY
from tools.public_names import PACKAGES, PUBLIC, SNAPSHOT, public_names, snapshot

PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]


def test_snapshot_is_up_to_date() -> None:
    assert SNAPSHOT.read_text() == snapshot()


def test_snapshot_has_members_and_parameters() -> None:
    lines = snapshot().splitlines()
    assert "lifesign.client.RegistryClient.tasks" in lines
    assert "lifesign.CountingProfile.INTERACTIONS" in lines
    assert "lifesign.agent.AgentEnd: class(StrEnum)" in lines
    (page,) = [
        line for line in lines if line.startswith("lifesign.client.registry_leases.RegistryLeases.renew(")
    ]
    assert page.endswith("(lease_id, *, fencing_token, ttl_seconds=, incarnation=)")
    # Keywords of a TypedDict are parameters like others.
    (each,) = [line for line in lines if ".RegistryTargets.each(" in line]
    assert "never_probed=" in each
    assert "**" not in each


def test_every_import_of_a_page_is_public() -> None:
    public = {(module, name) for module, names in public_names().items() for name in names}
    shown = {
        (node.module, alias.name)
        for page in PAGES
        for block in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
        for node in ast.walk(ast.parse(block))
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "lifesign"
        for alias in node.names
    }
    assert len(shown) >= 10
    assert {module for module, _ in shown} >= set(PACKAGES[:3])
    assert shown - public == set()
    assert PUBLIC.keys() <= {module for module, _ in public}
