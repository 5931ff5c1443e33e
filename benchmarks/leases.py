"""Leases per second that are acquired, renewed and released, beside etcd, and renewals per second.

Both acquire a lease by a name that was never used, renew it once and release it. etcd needs four requests
(grant, put if absent, keep alive, revoke), the registry three; whole leases per second are compared. Both
have as many connections and flush to disk before they answer. One exception is etcd's keep-alive: it renews
in memory, and a new leader gives each lease its whole time again. The registry also checks a key, checks
the agent's state and logs two chained events.

etcd uses all cores. The registry serves with one process on SQLite, and with one process per core on
PostgreSQL; both are measured. On two cores the client takes one of them. Therefore the processor time per
lease is reported too, with that of PostgreSQL: it depends less than a rate on what else the machine does.

Renewals alone, which most requests of a holder are, run beside a bare Starlette route that reads the same
body and returns it.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request as Asked
from urllib.request import urlopen

from starlette.applications import Starlette
from starlette.routing import Route

sys.path.insert(0, str(Path(__file__).parents[1]))  # it may be started as a file
from benchmarks.fleet import Fleet
from benchmarks.heartbeats import BARE, echo, filled, serve_registry
from benchmarks.interleaved import Measured, in_rounds, is_quick, print_table, verdict
from benchmarks.over_http import Question, Server, serve, server
from benchmarks.process_tree import cpu_seconds
from tests.support.databases import postgresql_server

from lifesign.registry.leases.lease_endpoint import LEASES_PATH, RENEW_PATH

CONNECTIONS = 32
CORES = len(os.sched_getaffinity(0))
TARGET = 1.0
RENEWERS = 256
RENEWAL_TARGET = 0.3
LONG_S = 3_600
"""Duration of the leases that are only renewed."""
ETCD = "etcd 3.4, HTTP/JSON"
OURS = (("ours, sqlite", "sqlite", 1), ("ours, postgresql", "postgresql", 1)) + (
    (("ours, postgresql, a process for each core", "postgresql", CORES),) if CORES > 1 else ()
)
"""Title, kind of database, and number of server processes."""
PATIENCE_SECONDS = 20

# One thread of wrk for each connection, so that each has a state of its own: which lease it holds.
_SHARED = """
local number = 0
function setup(thread) thread:set("me", number); number = number + 1 end
local phase, turn, lease, token = 0, 0, "", ""
local begun = os.time()
local function name() return string.format("%d-%d-%d", begun, me, turn) end
"""
_OURS = (
    _SHARED
    + """
local keys = {}
function init(args)
  for line in io.lines("KEYS") do keys[#keys + 1] = line end
  wrk.headers["x-api-key"] = keys[me + 1]
  wrk.headers["content-type"] = "application/json"
end
function request()
  if phase == 0 then
    turn = turn + 1
    return wrk.format("POST", "/api/v1/leases", nil, '{"resource":"task:' .. name() .. '","ttl_seconds":60}')
  elseif phase == 1 then
    return wrk.format("POST", "/api/v1/leases/" .. lease .. "/renew", nil,
      '{"fencing_token":' .. token .. ',"ttl_seconds":60}')
  end
  return wrk.format("DELETE", "/api/v1/leases/" .. lease)
end
function response(status, headers, body)
  if phase == 0 then
    lease, token = body:match('"lease_id":"([^"]+)"'), body:match('"fencing_token":(%d+)')
  end
  if status >= 300 then print("unexpected", status, body) end
  phase = (phase + 1) % 3
end
"""
)
_ETCD = (
    _SHARED
    + """
local letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
local function base64(text)
  text = text .. string.rep(" ", -#text % 3)
  return (text:gsub("...", function(three)
    local a, b, c = three:byte(1, 3)
    local bits = a * 65536 + b * 256 + c
    local out = ""
    for place = 3, 0, -1 do
      local index = math.floor(bits / 64 ^ place) % 64
      out = out .. letters:sub(index + 1, index + 1)
    end
    return out
  end))
end
function request()
  if phase == 0 then
    turn = turn + 1
    return wrk.format("POST", "/v3/lease/grant", nil, '{"TTL":60}')
  elseif phase == 1 then
    local key = base64("task:" .. name())
    return wrk.format("POST", "/v3/kv/txn", nil,
      '{"compare":[{"target":"CREATE","key":"' .. key .. '","create_revision":"0","result":"EQUAL"}],' ..
      '"success":[{"request_put":{"key":"' .. key .. '","value":"' .. key ..
      '","lease":"' .. lease .. '"}}]}')
  elseif phase == 2 then
    return wrk.format("POST", "/v3/lease/keepalive", nil, '{"ID":"' .. lease .. '"}')
  end
  return wrk.format("POST", "/v3/lease/revoke", nil, '{"ID":"' .. lease .. '"}')
end
function response(status, headers, body)
  if phase == 0 then lease = body:match('"ID":"([^"]+)"') end
  if status >= 300 or (phase == 1 and not body:find('"succeeded":true', 1, true)) then
    print("unexpected", status, body)
  end
  phase = (phase + 1) % 4
end
"""
)


_RENEW = """
local requests, next_one = {}, 0
function init(args)
  for line in io.lines("LEASES") do
    local lease, token, key = line:match("(%S+) (%S+) (%S+)")
    requests[#requests + 1] = wrk.format("POST", "/api/v1/leases/" .. lease .. "/renew",
      {["x-api-key"] = key, ["content-type"] = "application/json"},
      '{"fencing_token":' .. token .. ',"ttl_seconds":3600}')
  end
end
function request()
  next_one = next_one % #requests + 1
  return requests[next_one]
end
"""


def bare() -> Starlette:
    return Starlette(routes=[Route(RENEW_PATH, echo, methods=["POST"])])


@contextmanager
def etcd() -> Iterator[Server]:
    """Start etcd with its defaults on a new directory."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        client, peer = (f"http://127.0.0.1:{listening.getsockname()[1]}" for listening in (one, other))
    with tempfile.TemporaryDirectory(prefix="lifesign-bench-") as directory:
        command = [
            "etcd", "--data-dir", directory, "--name", "bench", "--log-level", "error",
            "--listen-client-urls", client, "--advertise-client-urls", client,
            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
            "--initial-cluster", f"bench={peer}",
        ]  # fmt: skip
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                _wait_for(f"{client}/health")
                yield Server(client, process.pid)
            finally:
                process.terminate()


def _wait_for(url: str) -> None:
    give_up_at_s = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < give_up_at_s:
        try:
            with urlopen(url, timeout=1):  # noqa: S310 - our own server
                return
        except (URLError, OSError):
            time.sleep(0.1)
    raise SystemExit(f"{url} does not answer")


class Leasing:
    """Takes whole leases of one server, of so many requests each; a sample is how many per second."""

    def __init__(self, url: str, script: Path, requests: int, *, seconds: int, pids: Sequence[int]) -> None:
        threads = ["wrk", f"-t{CONNECTIONS}", f"-c{CONNECTIONS}", f"-d{seconds}s"]
        self._command = [*threads, "-s", str(script), url]
        self._requests = requests
        self._pids = pids
        self.cpu_us: list[float] = []
        """Processor time of these processes and their children for one lease, in µs, of every sample."""

    def __call__(self) -> float:
        """Take a sample."""
        before = sum(map(cpu_seconds, self._pids))
        done = subprocess.run(self._command, capture_output=True, text=True, check=True)
        took = sum(map(cpu_seconds, self._pids)) - before
        rate = re.search(r"Requests/sec:\s+([\d.]+)", done.stdout)
        requests = re.search(r"(\d+) requests in", done.stdout)
        has_trouble = any(word in done.stdout for word in ("unexpected", "Non-2xx", "Socket errors"))
        if rate is None or requests is None or has_trouble:
            raise SystemExit(f"wrk had trouble: {' '.join(self._command)}\n{done.stdout[:2000]}{done.stderr}")
        self.cpu_us.append(took * 1e6 * self._requests / int(requests[1]))
        return float(rate[1]) / self._requests


def renewing(file: Path, url: str, fleet: Fleet) -> Path:
    """Let each agent acquire a lease; write the script that makes wrk renew one after another."""
    held = []
    for number in range(fleet.size):
        body = json.dumps({"resource": f"task:renewed-{number}", "ttl_seconds": LONG_S}).encode()
        headers = {"x-api-key": fleet.key(number), "content-type": "application/json"}
        with urlopen(Asked(url + LEASES_PATH, body, headers)) as answer:  # noqa: S310 - our own server
            lease = json.load(answer)
        held.append(f"{lease['lease_id']} {lease['fencing_token']} {fleet.key(number)}\n")
    leases = file.with_suffix(".txt")
    leases.write_text("".join(held))
    file.write_text(_RENEW.replace("LEASES", str(leases)))
    return file


def show_renewals(*, seconds: int, rounds: int) -> None:
    fleet = Fleet(RENEWERS)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lifesign-bench-")))
        servers, scripts = {}, {}
        for kind in ("sqlite", "postgresql"):
            url = stack.enter_context(filled(kind, fleet))
            servers[kind] = stack.enter_context(server(url, file=__file__))
            scripts[kind] = renewing(directory / f"{kind}.lua", servers[kind].url, fleet)
        servers[BARE], scripts[BARE] = stack.enter_context(server("bare", file=__file__)), scripts["sqlite"]
        asked = {
            name: Question(servers[name], "/", seconds=seconds, script=scripts[name], connections=RENEWERS)
            for name in (BARE, "sqlite", "postgresql")
        }
        measured = in_rounds(asked, rounds=rounds)
    cpu_us = Measured({name: question.cpu_us[1:] for name, question in asked.items()})
    print_table(
        f"leases renewed by one process, {RENEWERS} connections kept alive",
        ["", "requests/s", "of the bare one", "target", "CPU µs"],
        [
            [
                name,
                f"{measured.median(name):.0f}",
                f"{measured.ratio(name, BARE):.3f}",
                "" if name == BARE else verdict(measured.ratio(name, BARE), at_least=RENEWAL_TARGET),
                f"{cpu_us.median(name):.1f}",
            ]
            for name in asked
        ],
    )


def show(*, seconds: int, rounds: int) -> None:
    fleet = Fleet(CONNECTIONS)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lifesign-bench-")))
        keys, ours, theirs = (directory / name for name in ("keys.txt", "ours.lua", "etcd.lua"))
        keys.write_text("".join(f"{fleet.key(number)}\n" for number in range(fleet.size)))
        ours.write_text(_OURS.replace("KEYS", str(keys)))
        theirs.write_text(_ETCD)
        peer = stack.enter_context(etcd())
        contestants = {ETCD: Leasing(peer.url, theirs, 4, seconds=seconds, pids=[peer.pid])}
        for name, kind, processes in OURS:
            url = stack.enter_context(filled(kind, fleet))
            served = stack.enter_context(server(url, str(processes), file=__file__, is_pinned=False))
            pids = [served.pid, *([postgresql_server().get_pid()] if kind == "postgresql" else [])]
            contestants[name] = Leasing(served.url, ours, 3, seconds=seconds, pids=pids)
        measured = in_rounds(contestants, rounds=rounds)
    cpu_us = Measured({name: contestant.cpu_us[1:] for name, contestant in contestants.items()})
    print_table(
        f"leases acquired, renewed and released, {CONNECTIONS} connections kept alive",
        ["", "leases/s", "of etcd's", "target", "CPU µs", "etcd's CPU / ours"],
        [
            [
                name,
                f"{measured.median(name):.0f}",
                f"{measured.ratio(name, ETCD):.2f}",
                "" if name == ETCD else verdict(measured.ratio(name, ETCD), at_least=TARGET),
                f"{cpu_us.median(name):.0f}",
                "" if name == ETCD else f"{cpu_us.ratio(ETCD, name):.2f}",
            ]
            for name in contestants
        ],
    )


def main() -> None:
    if sys.argv[1:2] == ["--serve"]:
        if sys.argv[2] == "bare":
            serve(bare(), proxy_headers=False)
            return
        serve_registry(sys.argv[2], *map(int, sys.argv[3:]))
        return
    is_smoke = is_quick(__doc__)
    if absent := [program for program in ("wrk", "etcd") if shutil.which(program) is None]:
        print(f"absent: {', '.join(absent)}; nothing is measured (apt-get install wrk etcd-server)")
        return
    show_renewals(seconds=2 if is_smoke else 5, rounds=3 if is_smoke else 9)
    show(seconds=2 if is_smoke else 5, rounds=2 if is_smoke else 7)


if __name__ == "__main__":
    main()
