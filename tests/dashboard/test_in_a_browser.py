"""Pages in a real browser: with a keyboard, on a phone, in dark mode, live, and without scripts.

The browser is Debian's chromium; the accessibility rules are those of axe-core, which `make test` fetches.
Pictures of all pages are written to the directory that LIFESIGN_SCREENSHOTS names.
"""

import os
import re
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    ViewportSize,
    expect,
    sync_playwright,
)
from tests.dashboard.conftest import Filled, Sample
from tests.support.dashboard_sample import KEYS
from tests.support.dashboard_visitor import Visitor
from tests.support.servers import PATIENCE_SECONDS

from lifesign.domain.access.permissions import Role

CHROMIUM = shutil.which("chromium")
AXE = Path(__file__).parents[2] / ".axe" / "node_modules" / "axe-core" / "axe.min.js"
SCREENSHOTS = os.environ.get("LIFESIGN_SCREENSHOTS")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--no-first-run",
)  # fmt: skip
DESK: ViewportSize = {"width": 1280, "height": 800}
PHONE: ViewportSize = {"width": 390, "height": 844}
PATIENCE_MS = 1_000 * PATIENCE_SECONDS
expect.set_options(timeout=PATIENCE_MS)
SECRET_NAME = "lifesign_browser_secret"
CUT_LINKS = """
[...document.querySelectorAll(".page-header nav a")]
  .filter(link => link.getBoundingClientRect().right > link.closest("nav").getBoundingClientRect().right + 1)
  .map(link => link.textContent)
"""
"""Names of pages that the navigation has and does not show."""

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="NOT RUN: chromium is absent (apt-get install chromium)"
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def served(filled: Filled, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sample]:
    """A server that these tests alone change."""
    with filled.served(tmp_path_factory.mktemp("browser")) as sample:
        yield sample


@pytest.fixture
def context(browser: Browser, served: Sample) -> Iterator[BrowserContext]:
    """A visitor that is logged in."""
    with browser.new_context(viewport=DESK, base_url=served.server.url) as context:
        context.set_default_timeout(PATIENCE_MS)
        log_in(context, served)
        yield context


def log_in(context: BrowserContext, served: Sample, role: Role = Role.COORDINATOR) -> None:
    bring_along(context, served.visitor(role))


def bring_along(context: BrowserContext, visitor: Visitor) -> None:
    """Let a browser be logged in as a visitor is."""
    context.add_cookies(
        [{"name": name, "value": value, "url": visitor.url} for name, value in visitor.cookies.items()]
    )
    context.add_init_script(f"try {{ localStorage.setItem({SECRET_NAME!r}, {visitor.secret!r}) }} catch {{}}")


def pages_of(served: Sample) -> dict[str, str]:
    """All pages, by the name of their picture."""
    targets = Visitor(served.server.url).get(
        "/api/v1/targets?host=gamma.example.net", x_api_key=KEYS[Role.READER]
    )
    (target,) = re.findall(rb'"target_id":"(tgt_[^"]+)"', targets.body)
    return {
        "overview": "/",
        "agents": "/agents",
        "agents-pool": "/agents?pool=billing",
        "agents-none": "/agents?q=nobody-is-called-so",
        "agent": "/agents/translator",
        "agent-down": "/agents/planner",
        "targets": "/targets",
        "target": f"/targets/{target.decode()}",
        "census": "/census",
        "tasks": "/tasks",
        "task": f"/tasks/{served.tasks['parent']}",
        "task-handoff": f"/tasks/{served.tasks['handoff']}",
        "events": "/events",
        "task-review": f"/tasks/{served.tasks['review']}",
        "status": "/status/translator",
        "refusal": "/agents/nobody",
        "login": "/login",
    }


def browser_complaint(message: ConsoleMessage) -> str | None:
    """Return a complaint of the browser; missing pages are none."""
    # Forms that are hard to use are reported at a lower level.
    kind: str = message.type
    is_of_a_form = kind == "verbose" and message.text.startswith("[DOM]")
    is_complaint = (kind in {"error", "warning"} or is_of_a_form) and "404" not in message.text
    return message.text if is_complaint else None


def test_each_page_is_accessible_and_loads_nothing_from_other_origins(
    browser: Browser, served: Sample
) -> None:
    complaints: list[str] = []
    hosts: set[str] = set()
    violations: dict[str, list[str]] = {}
    with browser.new_context(base_url=served.server.url) as context:
        context.set_default_timeout(PATIENCE_MS)
        log_in(context, served)
        page = context.new_page()
        page.on("console", lambda message: complaints.extend(filter(None, [browser_complaint(message)])))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: hosts.add(urlsplit(request.url).netloc))
        for name, path in pages_of(served).items():
            page.goto(path)
            for look in ("light", "dark", "phone"):
                shown = f"{look}-{name}"
                scheme: Literal["dark", "light"] = "dark" if look == "dark" else "light"
                page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
                page.set_viewport_size(PHONE if look == "phone" else DESK)
                wide = page.evaluate("document.scrollingElement.scrollWidth - window.innerWidth")
                assert wide <= 0, f"{shown} is {wide} pixels too wide"
                if name not in {"login", "status", "refusal"}:
                    cut = page.evaluate(CUT_LINKS)
                    assert cut == [], f"{shown}: the navigation is cut"
                if SCREENSHOTS and shown == "light-overview":
                    # For README.
                    page.screenshot(path=Path(SCREENSHOTS) / "dashboard.png")
                if SCREENSHOTS:
                    page.screenshot(path=Path(SCREENSHOTS) / f"{shown}.png", full_page=True)
                if AXE.exists() and look != "phone":
                    # Dark pages differ by their colours only.
                    rules = ["color-contrast"] if look == "dark" else []
                    violations |= {shown: found} if (found := broken_rules(page, *rules)) else {}
    assert complaints == []
    assert hosts == {urlsplit(served.server.url).netloc}
    assert violations == {}
    if not AXE.exists():
        pytest.skip("NOT RUN: axe-core is absent (make .axe/.installed, needs npm)")


def broken_rules(page: Page, *rules: str) -> list[str]:
    """Return the accessibility rules that a page breaks, and where; all are checked if none is given."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(f"{AXE.read_text()}; 0")
    options = {"resultTypes": ["violations"], **({"runOnly": rules} if rules else {})}
    found = page.evaluate("options => axe.run(document, options).then(ran => ran.violations)", options)
    return [f"{rule['id']}: {rule['nodes'][0]['html'][:200]}" for rule in found]


def test_login_and_search_work_by_keyboard(browser: Browser, served: Sample) -> None:
    with browser.new_context(viewport=DESK, base_url=served.server.url) as context:
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        page.goto("/")
        expect(page).to_have_url(re.compile("/login$"))
        expect(page.get_by_label("Key")).to_be_focused()
        page.keyboard.type(KEYS[Role.COORDINATOR])
        page.keyboard.press("Enter")
        expect(page).to_have_title(re.compile("Overview"))
        page.keyboard.press("Tab")
        expect(page.get_by_text("Skip to the content")).to_be_focused()
        expect(page.get_by_text("Skip to the content")).to_be_in_viewport()
        page.keyboard.press("Enter")
        expect(page.locator("main")).to_be_focused()
        page.get_by_role("link", name="Agents", exact=True).focus()
        page.keyboard.press("Enter")
        page.get_by_label("Part of id or name").focus()
        page.keyboard.type("transl")
        page.keyboard.press("Enter")
        expect(page.locator("tbody tr")).to_have_count(1)
        page.get_by_role("link", name="Translator").focus()
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="Translator (probed)")).to_be_visible()
        page.get_by_role("button", name="Log out").focus()
        page.keyboard.press("Enter")
        expect(page).to_have_url(re.compile("/login$"))


def keep_busy(served: Sample, agent_id: str) -> None:
    """Give an agent work: otherwise a drain ends at once."""

    file = served.server.directory / "registry.db"
    with closing(sqlite3.connect(file, timeout=PATIENCE_SECONDS)) as database, database:
        wanted = (
            "UPDATE heartbeats SET current_load = 1 WHERE agent = (SELECT id FROM agents WHERE agent_id = ?)"
        )
        assert database.execute(wanted, (agent_id,)).rowcount == 1


def test_events_are_shown_as_they_happen(context: BrowserContext, served: Sample) -> None:
    fleet, table, agent = (context.new_page() for _ in range(3))
    fleet.goto("/")
    table.goto("/agents?q=research-2")
    agent.goto("/agents/research-2")
    numbers = agent.locator("[data-part=history] details")
    numbers.locator("summary").click()
    agent.evaluate("document.activeElement.blur()")
    for page in (fleet, table, agent):
        expect(page.locator("#live")).to_have_text("live")
    keep_busy(served, "research-2")
    asked = Visitor(served.server.url)
    answer = asked._ask(
        "PATCH",
        "/api/v1/agents/research-2/status",
        b'{"status": "draining"}',
        {"x-api-key": KEYS[Role.COORDINATOR], "content-type": "application/json", "if-match": "*"},
    )
    assert answer.status == 200, answer.body
    line = fleet.locator("[data-feed] li").filter(has_text="research-2").filter(has_text="draining")
    expect(line).to_have_count(1)
    assert line.locator("a").get_attribute("href") == "/agents/research-2"
    expect(table.locator('[data-agent="research-2"] [data-status]')).to_have_text("draining")
    expect(agent.locator(".banner")).to_contain_text("draining")
    # An open element stays open although the page around it is fetched again.
    expect(numbers.locator("table")).to_be_visible()
    expect(fleet.locator("#announcement")).to_contain_text("new event")


NOTE_TORN = """() => {
  const part = document.querySelector("[data-part=waiting]");
  window.torn = [];
  new MutationObserver(() => {
    const count = Number(part.querySelector("[data-count]").textContent);
    const listed = part.querySelectorAll("li").length;
    if (count !== listed) window.torn.push([count, listed]);
  }).observe(part, { subtree: true, childList: true, characterData: true });
}"""
"""Record each moment when the count of waiting tasks differs from the length of their list."""


def test_number_of_changes_and_pending_reviews_are_updated(context: BrowserContext, served: Sample) -> None:
    table, tasks = context.new_page(), context.new_page()
    table.goto("/agents")
    tasks.goto("/tasks")
    for page in (table, tasks):
        expect(page.locator("#live")).to_have_text("live")
        expect(page.locator("[data-changes]")).to_be_hidden()
    waiting = tasks.locator("[data-part=waiting]")
    expect(waiting).to_contain_text("Waiting for people (3)")
    expect(waiting.locator("li")).to_have_count(3)
    tasks.evaluate(NOTE_TORN)
    tasks.get_by_label("Pool").focus()
    total = table.locator('[data-count="total"]')
    before = int(total.inner_text().split()[0])
    asked = served.visitor()
    for method, path, body in (
        ("POST", "/api/v1/agents", b'{"agent_id": "newcomer", "name": "Newcomer"}'),
        ("POST", f"/api/v1/tasks/{served.tasks['handoff']}/resolve", b'{"resolution": "done"}'),
    ):
        sent = {"x-api-key": KEYS[Role.ADMIN], "content-type": "application/json"}
        answer = asked._ask(method, path, body, sent)
        assert answer.status in {200, 201}, answer.body
    expect(table.locator("[data-changes]")).to_have_text("1 agent changed: show")
    expect(total).to_have_text(f"{before + 1} agents")
    expect(tasks.locator("[data-changes]")).to_have_text("1 task changed: show")
    expect(waiting).to_contain_text("Waiting for people (2)")
    expect(waiting.locator("li")).to_have_count(2)
    assert tasks.evaluate("torn") == [], "the count and the list of waiting tasks differed"
    table.get_by_role("link", name="show", exact=True).click()
    expect(table.locator('[data-agent="newcomer"]')).to_have_count(1)


def test_open_page_reports_an_expired_session_and_the_login_leads_back(
    browser: Browser, served: Sample
) -> None:
    visitor = Visitor(served.server.url)
    assert visitor.log_in(KEYS[Role.READER]).status == 303
    with browser.new_context(viewport=PHONE, base_url=served.server.url) as context:
        context.set_default_timeout(PATIENCE_MS)
        bring_along(context, visitor)
        left, other = context.new_page(), context.new_page()
        left.goto("/agents?status=dead&q=a")
        other.goto("/")
        expect(left.locator("#live")).to_have_text("live")
        other.get_by_role("button", name="Log out").click()
        expect(left.get_by_role("status")).to_have_text(
            "Your session has ended, and this page is no longer live. Log in to continue here."
        )
        expect(left.locator("#live")).to_have_count(0)
        expect(left.get_by_role("button", name="Log out")).to_have_count(0)
        assert not AXE.exists() or broken_rules(left) == []
        left.get_by_role("link", name="Log in").click()
        left.get_by_label("Key").fill(KEYS[Role.READER])
        left.get_by_role("button", name="Log in").click()
        expect(left).to_have_url(f"{served.server.url}/agents?status=dead&q=a")
        expect(left.locator("#live")).to_have_text("live")


def test_task_decision_works_in_the_browser(context: BrowserContext, served: Sample) -> None:
    page = context.new_page()
    page.goto(f"/tasks/{served.tasks['review']}")
    page.get_by_label("Comment", exact=True).fill("looks right")
    page.get_by_role("button", name="Accept").click()
    expect(page.get_by_role("status")).to_have_text("The review was noted.")
    expect(page.locator("[data-part=status]")).to_contain_text("done")
    page.goto("/agents/summariser")
    page.get_by_role("group", name="Maintenance").get_by_label("Reason").fill("new model")
    page.get_by_role("button", name="Begin maintenance").click()
    expect(page.locator(".banner")).to_contain_text("In maintenance until")


def log_in_by_form(page: Page, role: Role) -> None:
    page.goto("/login")
    page.get_by_label("Key").fill(KEYS[role])
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("button", name="Log out")).to_have_count(1)


def test_cookie_in_another_browser_can_only_read(browser: Browser, served: Sample) -> None:
    place = "/agents/billing-2"
    with (
        browser.new_context(base_url=served.server.url) as own,
        browser.new_context(base_url=served.server.url) as thief,
    ):
        page, other = own.new_page(), thief.new_page()
        log_in_by_form(page, Role.COORDINATOR)
        cookies = {cookie["name"]: cookie["value"] for cookie in own.cookies()}
        bring_along(thief, Visitor(served.server.url, cookies, secret="a guess"))
        for each, answer in ((other, "Forbidden"), (page, "Billing agent 2")):
            each.goto(place)
            group = each.get_by_role("group", name="Maintenance")
            group.get_by_label("Reason").fill("new model")
            group.get_by_role("button").click()
            expect(each.locator("h1")).to_have_text(answer)
        expect(page.locator(".banner")).to_contain_text("In maintenance until")
        # A filter is part of a URL, which others may see.
        page.goto("/agents")
        page.get_by_role("button", name="Show").click()
        expect(page).to_have_url(re.compile(r"/agents\?q="))
        assert "secret" not in page.url


def test_form_without_javascript_asks_for_the_key(browser: Browser, served: Sample) -> None:
    with browser.new_context(java_script_enabled=False, base_url=served.server.url) as context:
        page = context.new_page()
        log_in_by_form(page, Role.COORDINATOR)
        for key, answer in ((KEYS[Role.ADMIN], "Forbidden"), (KEYS[Role.COORDINATOR], "Billing agent 3")):
            page.goto("/agents/billing-3")
            form = page.locator('form[action$="/maintenance"]')
            form.get_by_label("Reason").fill("new model")
            form.get_by_label("Your key").fill(key)
            form.get_by_role("button").click()
            expect(page.locator("h1")).to_have_text(answer)
        expect(page.locator(".banner")).to_contain_text("In maintenance until")


def test_long_reason_leaves_a_short_url_on_one_line(context: BrowserContext, served: Sample) -> None:
    page = context.new_page()
    page.goto("/targets")
    links = page.locator("tbody th a")
    links.evaluate_all("links => links.forEach(link => { link.textContent = 'http://127.77.0.10:18377/' })")
    before = links.first.bounding_box()
    # Simulates a long reason of a prober.
    page.locator("tbody td:nth-child(3)").evaluate_all(
        "cells => cells.forEach(cell => { cell.textContent = 'no connection in time '.repeat(8) })"
    )
    beside = links.first.bounding_box()
    assert before is not None
    assert beside is not None
    assert beside["height"] == before["height"]


def test_long_pool_and_fact_names_do_not_overflow(context: BrowserContext, served: Sample) -> None:
    page = context.new_page()
    page.goto("/agents?pool=billing")
    page.locator("tbody td.short a").evaluate_all(
        "links => links.forEach(link => { link.textContent = 'p'.repeat(32) })"
    )
    table = page.get_by_role("region", name="Agents")
    assert table.evaluate("table => table.scrollWidth - table.clientWidth") <= 0
    page.goto("/agents/billing-1")
    name, value = (page.locator(f"section[aria-labelledby=card] {which}").last for which in ("dt", "dd"))
    name.evaluate("name => { name.textContent = 'k'.repeat(40) }")
    beside, room = name.bounding_box(), value.bounding_box()
    assert beside is not None
    assert room is not None
    assert room["width"] > beside["width"]


def test_narrow_agent_table_labels_each_value(browser: Browser, served: Sample) -> None:
    with browser.new_context(viewport=PHONE, base_url=served.server.url) as context:
        context.set_default_timeout(PATIENCE_MS)
        log_in(context, served)
        page = context.new_page()
        page.goto("/agents?q=billing-1")
        labels = page.locator("tbody td[data-label]").evaluate_all(
            "cells => cells.map(cell => getComputedStyle(cell, '::before').content)"
        )
        assert [label.replace('"', "").strip() for label in labels] == [
            "Health", "Observed", "Load", "Pool", "Last heartbeat",
        ]  # fmt: skip
        page.locator("tbody td.short a").evaluate("link => { link.textContent = 'p'.repeat(32) }")
        table = page.get_by_role("region", name="Agents")
        assert table.evaluate("table => table.scrollWidth - table.clientWidth") <= 0


def test_checkbox_is_aligned_with_its_button(context: BrowserContext, served: Sample) -> None:
    page = context.new_page()
    page.goto("/agents/translator")
    button = page.get_by_role("button", name="Drain it now").bounding_box()
    tick = page.get_by_label("I am sure").bounding_box()
    assert button is not None
    assert tick is not None
    middles = [box["y"] + box["height"] / 2 for box in (button, tick)]
    assert abs(middles[0] - middles[1]) < 3, middles


def test_pages_are_readable_without_javascript(browser: Browser, served: Sample) -> None:
    with browser.new_context(java_script_enabled=False, base_url=served.server.url) as context:
        context.set_default_timeout(PATIENCE_MS)
        log_in(context, served)
        page = context.new_page()
        for path in ("/", "/agents", "/agents/translator", "/tasks", "/events", "/census"):
            page.goto(path)
            expect(page.locator("main h1")).to_have_count(1)
            expect(page.locator("#live")).to_be_hidden()
        page.goto("/agents")
        page.locator("select[name=status]").select_option("dead")
        page.get_by_role("button", name="Show").click()
        expect(page.locator("tbody tr")).to_have_count(2)
