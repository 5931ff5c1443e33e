"""The set of probed targets after any sequence of listings, registrations, results and opt-outs.

A model states in the plainest words what follows. After every step the registry must agree, each shard's
prober must know the same from changes alone, and the log must prove the stored state.
"""

from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule
from tests.support.databases import KINDS
from tests.support.directory_api import DIRECTORIES, claim, feed, put
from tests.support.registry_api import AGENTS
from tests.support.registry_machine import RegistryMachine, drive

from lifesign.domain.models.base import moment
from lifesign.domain.targets.opt_out_proof import is_covered
from lifesign.domain.targets.target import host_of, shard_of, target_id
from lifesign.registry.targets.opt_out_origins import prove

HOSTS = ["a.example", "b.example", "c.example"]
URLS = [f"https://{host}/{number}" for host in HOSTS for number in range(4)]
NAMES = ["one", "two"]
AGENT = "agent-1"

urls = st.sets(st.sampled_from(URLS), max_size=len(URLS))
names = st.sampled_from(NAMES)
some_url = st.sampled_from(URLS)


@dataclass
class Model:
    """The expected knowledge."""

    listed: dict[str, set[str]] = field(default_factory=dict)
    """By directory."""
    held: dict[str, set[str]] = field(default_factory=dict)
    """The list of a directory after its confirmation."""
    gone: set[str] = field(default_factory=set)
    """URLs whose agents an operator deregistered."""
    alive: set[str] = field(default_factory=set)
    """URLs that have a record that is alive."""
    agent_url: str | None = None
    """URL at which the registered agent wants to be probed."""
    opted_out: set[str] = field(default_factory=set)
    """Origins."""

    def has_opted_out(self, url: str) -> bool:
        return any(is_covered(url, origin) for origin in self.opted_out)

    def probed(self) -> dict[str, str]:
        """Return the targets to probe: URLs by the targets' ids."""
        wanted = set().union(*self.listed.values()) - self.gone if self.listed else set()
        found = {target_id(url): url for url in wanted if not self.has_opted_out(url)}
        if self.agent_url is not None and not self.has_opted_out(self.agent_url):
            found[AGENT] = self.agent_url
        return found

    def settle(self) -> None:
        """Let former targets have no record that is alive."""
        probed = self.probed()
        self.alive = {url for url in self.alive if target_id(url) in probed or url in self.gone}


class TargetsMachine(RegistryMachine):
    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.imports = 0
        self.versions: dict[int, int] = {}
        self.known: dict[str, str] = {}
        self.tokens = self.run(claim(self.api, ttl_seconds=300))

    @rule(name=names, listed=urls)
    def list_them(self, name: str, listed: set[str]) -> None:
        self.imports += 1
        record = self.run(put(self.api, name, f"import-{self.imports}", sorted(listed)))
        before = self.model.listed.get(name, set())
        is_suspended = len(before) > 10 and len(before - listed) * 2 > len(before)
        assert record["state"] == ("suspended" if is_suspended else "applied"), record
        self.model.held.pop(name, None)
        if is_suspended:
            self.model.held[name] = listed
            self.model.listed[name] = before | listed
        else:
            self.model.listed[name] = listed
        self.model.settle()

    @rule(name=names)
    def confirm(self, name: str) -> None:
        held = self.model.held.pop(name, None)
        answer = self.run(self.api.ask("POST", f"{DIRECTORIES}/{name}/confirm"))
        expected = 404 if name not in self.model.listed else 409 if held is None else 200
        assert answer.status == expected
        if held is not None:
            self.model.listed[name] = held
            self.model.settle()

    @rule(url=some_url, is_alive=st.booleans())
    def probe(self, url: str, *, is_alive: bool) -> None:
        self.clock.advance(1)
        layers = {"transport": {"result": "ok" if is_alive else "timeout"}}
        seen = {"target_url": url, "observed_at": moment(self.clock.at_s).isoformat(), **layers}
        shard = shard_of(host_of(url))
        token = self.tokens[shard]
        answer = self.run(self.api.report(seen, shard=shard, fencing_token=token)).json()
        (outcome,) = [result["outcome"] for result in answer["results"]]
        if target_id(url) not in self.model.probed():
            assert outcome in {"unknown", "ignored"}
        elif is_alive or url in self.model.alive:
            assert outcome == "accepted"
            self.model.alive.add(url)
        else:
            assert outcome == "no_liveness_signal_yet"

    @rule(url=some_url)
    def take_off_the_list(self, url: str) -> None:
        is_alive = url in self.model.alive
        answer = self.run(self.api.ask("DELETE", f"{AGENTS}/{target_id(url)}"))
        assert (answer.status == 204) == is_alive
        if is_alive:
            self.model.alive.discard(url)
            self.model.gone.add(url)

    @rule(url=some_url)
    def register(self, url: str) -> None:
        body = {"agent_id": AGENT, "monitoring": "probe", "card_url": url, "supersede": True}
        answer = self.run(self.api.ask("POST", AGENTS, body))
        if self.model.has_opted_out(url):
            assert answer.status == 422
        else:
            assert answer.status == 201
            self.model.agent_url = url

    @rule()
    def deregister(self) -> None:
        answer = self.run(self.api.ask("DELETE", f"{AGENTS}/{AGENT}"))
        assert (answer.status == 204) == (self.model.agent_url is not None)
        self.model.agent_url = None

    @rule(host=st.sampled_from(HOSTS))
    def opt_out(self, host: str) -> None:
        asked = self.run(self.api.ask("POST", "/api/v1/opt-outs", {"url": host})).json()
        origin, token = asked["origin"], asked["token"]
        is_new = self.run(
            self.api.database.write(lambda transaction: prove(transaction, origin, token, "server"))
        )
        assert is_new == (origin not in self.model.opted_out)
        self.model.opted_out.add(origin)
        self.model.settle()

    @rule(host=st.sampled_from(HOSTS))
    def opt_in(self, host: str) -> None:
        origin = f"https://{host}"
        answer = self.run(self.api.ask("DELETE", f"/api/v1/opt-outs?url={host}"))
        assert (answer.status == 204) == (origin in self.model.opted_out)
        self.model.opted_out.discard(origin)

    @invariant()
    def what_should_be_probed_is(self) -> None:
        found: dict[str, str] = {}
        for host in HOSTS:
            whole = self.run(feed(self.api, shard_of(host)))
            found |= {target["subject_id"]: target["url"] for target in whole["targets"]}
        assert found == self.model.probed()

    @invariant()
    def who_follows_the_changes_knows_the_same(self) -> None:
        for host in HOSTS:
            shard = shard_of(host)
            changed = self.run(feed(self.api, shard, self.versions.get(shard, 0), limit=2))
            for subject_id in changed["gone"]:
                # It may have gone over to another shard, whose prober knows it then.
                if shard_of(host_of(self.known.get(subject_id, f"https://{host}/"))) == shard:
                    self.known.pop(subject_id, None)
            self.known |= {target["subject_id"]: target["url"] for target in changed["targets"]}
            self.versions[shard] = changed["version"]
        assert self.known == self.model.probed()

    @invariant()
    def records_of_alive_targets_are_active(self) -> None:
        listed = self.run(self.api.ask("GET", f"{AGENTS}?limit=100")).json()["agents"]
        found = {agent["agent_id"] for agent in listed} - {AGENT}
        assert found == {target_id(url) for url in self.model.alive}

    @invariant()
    def directories_know_their_sizes(self) -> None:
        shown = self.run(self.api.ask("GET", DIRECTORIES)).json()["directories"]
        sizes = {directory["name"]: directory["size"] for directory in shown}
        assert sizes == {name: len(listed) for name, listed in self.model.listed.items()}


@pytest.mark.hypothesis
@pytest.mark.parametrize(("kind", "runs"), [("sqlite", 2), ("postgresql", 1)])
def test_state_machine_probes_exactly_the_due_targets(kind: str, runs: int) -> None:
    drive(TargetsMachine, kind, runs=runs, steps=25)


@pytest.mark.hypothesis
@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_long_state_machine_probes_exactly_the_due_targets(kind: str) -> None:
    drive(TargetsMachine, kind, runs=6, steps=60)
