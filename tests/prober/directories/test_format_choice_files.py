"""Real directory files are read completely; the expected counts were made by reading the files."""

from pathlib import Path

import pytest

from lifesign.prober.directories import ListSource, NotRead, Snapshot, read_directory
from lifesign.prober.directories.format_parser import Kind
from lifesign.prober.directories.target_collection import PROBED_KINDS

LISTS = Path(__file__).parents[3].parent / "shared" / "data" / "lists"
EVERYTHING = frozenset(Kind)

pytestmark = pytest.mark.skipif(
    not LISTS.is_dir(), reason=f"NOT RUN: the directory files are absent: {LISTS}"
)

# Format, items, targets, left out by reason, and targets with MCP servers.
READ = {
    "a2a-registry_seed_data.json": ("a2a_registry", 22, 22, {}, 22),
    "agntcy_record_100.json": ("agntcy", 1, 1, {}, 1),
    "agntcy_record_110.json": ("agntcy", 1, 0, {"no_url": 1}, 0),
    "ai-catalog_example.json": ("ai_catalog", 2, 1, {"not_a2a": 1}, 1),
    "anp_hotel_ad.json": ("anp", 1, 0, {"not_a2a": 1}, 0),
    "ard_basic_ai-catalog.json": ("ai_catalog", 4, 1, {"not_a2a": 2}, 3),
    "ard_fda-ndc-catalog.json": ("ai_catalog", 1, 0, {"not_a2a": 1}, 1),
    "ard_noaa-weather-catalog.json": ("ai_catalog", 1, 0, {"not_a2a": 1}, 1),
    # 68 servers, 8 of them with 9 remotes at 7 URLs, one of which has a placeholder.
    "mcp-registry_seed_2025_05_16.json": (
        "mcp_registry", 68, 0, {"no_url": 60, "template_url": 1, "not_a2a": 8}, 6,
    ),
}  # fmt: skip
SCHEMAS = {"a2a-registry_registry-agent.schema.json", "ard_ai-catalog.schema.json"}


async def snapshot(name: str, kinds: frozenset[Kind] = PROBED_KINDS) -> Snapshot:
    found = await read_directory(ListSource(file=LISTS / name, kinds=kinds))
    assert isinstance(found, Snapshot), found
    return found


def test_each_captured_directory_file_has_an_expectation() -> None:
    assert {path.name for path in LISTS.iterdir()} == {*READ, *SCHEMAS}


@pytest.mark.parametrize("name", READ)
async def test_a_directory_file_is_read_whole(name: str) -> None:
    form, items, targets, left_out, with_mcp = READ[name]
    found = await snapshot(name)
    assert (found.format, found.items, len(found.entries)) == (form, items, targets)
    assert {reason: one.count for reason, one in found.left_out.items()} == left_out
    assert len((await snapshot(name, EVERYTHING)).entries) == with_mcp


@pytest.mark.parametrize("name", sorted(SCHEMAS))
async def test_a_schema_is_no_directory(name: str) -> None:
    refused = await read_directory(ListSource(file=LISTS / name))
    assert isinstance(refused, NotRead)
    assert (refused.fault, "a JSON Schema" in refused.message) == ("not_a_directory", True)


async def test_agent_is_listed_at_the_url_of_its_directory() -> None:
    seed = await snapshot("a2a-registry_seed_data.json")
    assert seed.entries[1].url == "https://coinrailz.com/.well-known/agent-card.json"
    assert {entry.kind for entry in seed.entries} == {Kind.A2A_CARD}
    (record,) = (await snapshot("agntcy_record_100.json")).entries
    assert record.url == "https://burger-agent-109790610330.us-central1.run.app/"
    assert (record.kind, record.name) == (Kind.A2A_ENDPOINT, "burger_seller_agent")
    (catalog,) = (await snapshot("ai-catalog_example.json")).entries
    assert catalog.url == "https://api.acme-corp.com/agents/acme-finance-agent.json"


async def test_urls_in_a_local_file_are_not_requested() -> None:
    found = await snapshot("ard_basic_ai-catalog.json")
    (finding,) = found.findings
    assert finding.name == "nested_not_read"
    assert "https://acme.com/catalogs/engineering.json" in finding.message


async def test_servers_on_localhost_and_templates_are_reported() -> None:
    found = await snapshot("mcp-registry_seed_2025_05_16.json", EVERYTHING)
    assert found.left_out["template_url"].examples == ("https://mcp.amap.com/sse?key=<YOUR_TOKEN>",)
    assert (found.duplicates, found.findings[0].name) == (2, "entries_on_localhost")
    assert found.findings[0].message.startswith("4 on this machine itself")
