"""`Session` as a harness has it: tool calls in real sandboxes of gVisor, behind a real gate."""

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.lab.box import leftovers
from tests.lab.certs import Authority
from tests.lab.dns import addresses, dns_server
from tests.lab.gate import Gate, configuration, gate, rule
from tests.lab.images import keep_image
from tests.lab.roots import why_no_gvisor
from tests.lab.upstream import says, upstream
from tidegate.errors import LaunchError
from tidegate.sdk import AsyncSession, AsyncSessionCall, Run, Sandbox, Session
from tidegate.sdk.command import Command
from tidegate.session.call import ToolCall
from tidegate.session.identity import SessionId
from tidegate_launcher.lease import Ask, Lease
from tidegate_launcher.place import LaunchPlace

pytestmark = pytest.mark.skipif(why_no_gvisor() is not None, reason=f"no gVisor: {why_no_gvisor()}")

API, OTHER = "api.allowed.test", "other.allowed.test"
SECRET = "real-secret-of-the-test-0123456789abcdef"
HOME = f"127.{os.getpid() % 200 + 20}.{os.getpid() // 200 % 250 + 1}.13"
HOSTILE = 'web\n{"v":1}\r\n\x1b]0;owned\x07\u202e'
ESCAPED = 'web\\x0a{"v":1}\\x0d\\x0a\\x1b]0;owned\\x07\\u202e'
READY = "import time; print('ready', flush=True); time.sleep(60)"
FETCH = """
import os, sys, urllib.request
token = sys.argv[2] if len(sys.argv) > 2 else os.environ.get("API_TOKEN")
ask = urllib.request.Request(sys.argv[1], headers={"Authorization": "Bearer " + token} if token else {})
try:
    print(urllib.request.urlopen(ask, timeout=10).status)
except Exception as fault:
    print(getattr(fault, "code", fault))
"""

AGAIN = """
import sys, time, urllib.request
for _ in range(200):
    try:
        print(urllib.request.urlopen(sys.argv[1], timeout=5).status, flush=True)
    except OSError:
        sys.exit("cut")
    time.sleep(0.05)
"""


@pytest.fixture(scope="module")
def running() -> Iterator[Gate]:
    credentials = {
        name: {
            "source": {"env": "SECRET"},
            "for": [{"host": host}],
            "place": {"header": "Authorization", "format": "Bearer {secret}"},
            "placeholder": {"shape": "generic", "env": f"{name.upper()}_TOKEN"},
        }
        for name, host in (("api", API), ("more", OTHER))
    }
    with (
        Authority() as ca,
        dns_server({API: addresses(HOME)}) as dns,
        upstream(ca=ca, names=(API,), address=HOME, port=443, routes={"/": says(b"hello")}),
    ):
        config = configuration(
            allow=[rule(API, credential="api"), rule(OTHER, credential="more")],
            credentials=credentials,
            dns=dns,
            ca=ca,
        )
        with gate(config, env={"SECRET": SECRET}) as one:
            keep_image(one.state)
            yield one


def nothing_is_left() -> bool:
    folders = [path.name for path in LaunchPlace.of_this_user()._path.glob(f"*-{os.getpid()}-*")]
    return leftovers() == [] and folders == []


def fetch(*words: str) -> list[str]:
    return ["python3", "-c", FETCH, *words]


def told(result: Run, code: bytes) -> None:
    assert result.untrusted_stdout == code + b"\n", result


def sessions(running: Gate) -> list[dict[str, Any]]:
    return list(running.admin("GET", "/v1/sessions")[1]["sessions"])


class TestSession:
    def test_one_that_does_nothing_wrong_is_no_incident(self, running: Gate) -> None:
        with Session("default", state=running.state) as session, session.call("web_search", "call_0") as call:
            assert call.run(["sleep", "1"], timeout=30).untrusted_exit_code == 0
            one = session.id
        running.wait_audit(lambda lines: any(line["session_event"]["act"] == "revoke" for line in lines),
                           session=one, type="session")  # fmt: skip
        assert running.audit(type="incident", session=one) == []

    def test_every_record_of_a_call_says_which_it_was_and_whose(self, running: Gate) -> None:
        with Session("default", credentials=["api"], owner="team", state=running.state) as session:
            with session.call("web_search", "call_1") as call:
                good = call.run(fetch(f"https://{API}/"), timeout=30)
                bad = call.run(fetch("https://evil.denied.test/"), timeout=30)
                asked = call.run(["python3", "-c", f"import socket; socket.gethostbyname('{API}')"], timeout=30)
            assert [one["call"] for one in sessions(running)] == [None]  # each run's ends with the run
            parent = session.id
        told(good, b"200")
        assert b"200" not in bad.untrusted_stdout, bad
        lines = running.wait_audit(
            lambda lines: {"launch", "http"} <= {line["type"] for line in lines}, session=good.session
        )
        lines += running.audit(session=bad.session) + running.audit(session=asked.session)
        assert {line["type"] for line in lines} >= {"session", "conn", "http", "dns", "credential", "launch"}
        named = {"tool": "web_search", "id": "call_1", "parent": parent}
        assert [line["call"] for line in lines] == [named] * len(lines)
        assert {line["owner"] for line in lines} == {"team"}
        assert {line["call"] for line in running.audit(session=parent)} == {None}
        assert nothing_is_left()

    def test_C_31_the_placeholder_of_one_call_is_refused_in_another(self, running: Gate) -> None:
        with Session("default", credentials=["api"], state=running.state) as session:
            with session.call("shell", "c1") as call:
                token = call.run(["printenv", "API_TOKEN"]).untrusted_stdout.decode().strip()
            with session.call("shell", "c2") as call:
                refused = call.run(fetch(f"https://{API}/", token), timeout=30)
            shown = session.redact(f"export API_TOKEN={token} and {token}")
        told(refused, b"403")
        (line,) = running.audit(type="http", phase="decision", session=refused.session)
        assert (line["reason"], line["call"]["id"]) == ("unknown_placeholder", "c2")
        assert [one["call"]["id"] for one in running.audit(type="incident", session=refused.session)] == ["c2"]
        assert token not in shown
        assert shown.count("«placeholder»") >= 1

    def test_a_call_has_all_or_some_or_none_of_the_credentials(self, running: Gate) -> None:
        code = "env | sed -n 's/_TOKEN=.*//p' | sort"
        with Session("default", credentials=["api", "more"], state=running.state) as session:
            for credentials, names in ((None, b"API\nMORE\n"), (["more"], b"MORE\n"), ([], b"")):
                with session.call("shell", "c", credentials=credentials) as call:
                    assert call.run(["sh", "-c", code]).untrusted_stdout == names
            with pytest.raises(LaunchError, match="does not hold 'nope'"):
                session.call("shell", "c", credentials=["api", "nope"])

    @pytest.mark.parametrize("risk", ["low", "high"])
    def test_a_call_finds_nothing_of_one_before_it(self, running: Gate, risk: Any) -> None:
        plant = "for folder in /work /tmp /dev/shm; do touch $folder/mark 2>/dev/null; done; ls /work"
        look = "ls /work/mark /tmp/mark /dev/shm/mark 2>/dev/null; printenv API_TOKEN"
        with Session("default", credentials=["api"], state=running.state) as session:
            with session.call("shell", "c1") as call:
                planted = call.run(["sh", "-c", f"{plant}; printenv API_TOKEN"]).untrusted_stdout.split()
            with session.call("shell", "c2", risk=risk) as call:
                found = [call.run(["sh", "-c", look]).untrusted_stdout.split() for _ in range(2)]
        assert planted[0] == b"mark"
        assert [len(words) for words in found] == [1, 1]
        assert len({planted[1], found[0][0], found[1][0]}) == 3

    def test_a_call_never_takes_a_sandbox_that_stands_ready_for_others(self, running: Gate) -> None:
        with Sandbox("default", state=running.state, ahead=1) as sandbox:
            pool = sandbox._pool
            assert pool is not None
            assert pool.wait()
            ready = {one["id"] for one in sessions(running)}
            ask = Ask(policy="default", call=ToolCall.of("shell", "c1"))
            result = sandbox.launch(Command.of(["true"]), ask=ask)
            assert ready <= {one["id"] for one in sessions(running)}
        assert result.session not in ready
        lines = running.audit(session=result.session)
        assert {line["call"]["id"] for line in lines} == {"c1"}

    def test_hostile_words_are_escaped_on_record_and_drive_no_terminal(self, running: Gate) -> None:
        with (
            Session("default", state=running.state) as session,
            session.call(HOSTILE, HOSTILE, risk="high") as call,
        ):
            result = call.run(["true"])
        lines = running.wait_audit(lambda lines: len(lines) == 2, type="launch", session=result.session)
        assert [(line["call"]["tool"], line["call"]["id"]) for line in lines] == [(ESCAPED, ESCAPED)] * 2
        shown = running.cli("log", "--call", HOSTILE).stdout
        assert "launch" in shown
        assert all(letter.isprintable() or letter == "\n" for letter in shown)

    @pytest.mark.parametrize("word", ["", "x" * 10_000, "\ud800", "a\udcffb", None, 7])
    def test_words_that_are_none_make_no_call(self, running: Gate, word: Any) -> None:
        with Session("default", state=running.state) as session:
            for words in ((word, "c1"), ("shell", word)):
                with pytest.raises(LaunchError, match="text of 1 to 128 characters"):
                    session.call(*words)
            with pytest.raises(LaunchError, match="low, high"):
                session.call("shell", "c1", risk=word)

    def test_a_call_has_no_session_once_its_own_is_over(self, running: Gate) -> None:
        with Session("default", state=running.state) as session:
            call = session.call("shell", "c1").__enter__()
            running.admin("DELETE", f"/v1/sessions/{session.id}")
            with pytest.raises(LaunchError, match="no live session"):
                call.run(["true"])
        with pytest.raises(LaunchError, match="not open"):
            session.call("shell", "c2")
        with pytest.raises(LaunchError, match="not open"):
            call.run(["true"])
        assert nothing_is_left()

    def test_the_end_of_a_session_takes_what_a_call_runs_off_the_gate(self, running: Gate) -> None:
        seen: list[bytes] = []
        with Session("default", state=running.state) as session:

            def end_it(_: str, data: bytes) -> None:
                if not seen:
                    running.admin("DELETE", f"/v1/sessions/{session.id}")
                seen.append(data)

            with session.call("shell", "c1") as call:
                result = call.run(["python3", "-c", AGAIN, f"https://{API}/"], timeout=40, on_output=end_it)
        assert seen[0] == b"200\n"
        assert (result.untrusted_exit_code, result.untrusted_stderr) == (1, b"cut\n")
        reasons = [line["reason"] for line in running.audit(type="session", session=result.session)]
        assert reasons[-1] == "parent_ended"

    def test_a_call_outside_of_its_block_runs_nothing(self, running: Gate) -> None:
        with Session("default", state=running.state) as session:
            call = session.call("shell", "c1")
            with pytest.raises(LaunchError, match="the call is not open"):
                call.run(["true"])
            with call:
                assert call.run(["true"]).untrusted_exit_code == 0
            with pytest.raises(LaunchError, match="not open"):
                call.run(["true"])

    def test_a_session_whose_policy_there_is_not_holds_no_image(self, running: Gate) -> None:
        from tidegate_launcher.image.store import Store

        with pytest.raises(LaunchError, match="nobody"), Session("nobody", state=running.state):
            pass
        store = Store(running.state / "images")
        store.remove("minimal")
        keep_image(running.state)


class TestAsync:
    async def test_calls_run_side_by_side_and_each_says_its_own_name(self, running: Gate) -> None:
        async def one(session: AsyncSession, id: str) -> Run:
            async with session.call("shell", id, risk="high") as call:
                return await call.run(fetch("https://evil.denied.test/"), timeout=30)

        async with AsyncSession("default", state=running.state) as session:
            results = await asyncio.gather(*(one(session, f"c{n}") for n in range(3)))
            parent = session.id
        for number, result in enumerate(results):
            lines = running.audit(session=result.session)
            named = {"tool": "shell", "id": f"c{number}", "parent": parent}
            assert [line["call"] for line in lines] == [named] * len(lines)
            assert any(line["reason"] == "not_in_allowlist" for line in lines)
        assert nothing_is_left()

    async def test_streams_what_a_call_prints_and_redacts_it(self, running: Gate) -> None:
        async with AsyncSession("default", credentials=["api"], state=running.state) as session:
            async with session.call("shell", "c1") as call:
                async with call.stream(["printenv", "API_TOKEN"]) as stream:
                    text = "".join([output.untrusted_data.decode() async for output in stream])
                    await stream.result()
                seen: list[bytes] = []
                await call.run(["echo", "hello"], on_output=lambda _, data: seen.append(data))
            assert session.redact(text) == "«placeholder»\n"
        assert seen == [b"hello\n"]

    async def test_the_end_of_a_call_ends_what_is_under_way_in_it_and_nothing_else(self, running: Gate) -> None:
        ready = asyncio.Event()
        async with AsyncSession("default", state=running.state) as session, asyncio.TaskGroup() as group:
            async with session.call("shell", "c1") as call:
                slow = group.create_task(self._told(call, ready))
                await ready.wait()
            assert await slow == "the launch was cancelled"
            assert nothing_is_left()
            async with session.call("shell", "c2") as other:
                assert (await other.run(["echo", "on"])).untrusted_stdout == b"on\n"

    async def _told(self, call: AsyncSessionCall, ready: asyncio.Event) -> str:
        with pytest.raises(LaunchError) as ended:
            await call.run(["python3", "-c", READY], timeout=60, on_output=lambda *_: ready.set())
        return str(ended.value)

    async def test_the_end_of_the_session_ends_what_is_under_way(self, running: Gate) -> None:
        ready = asyncio.Event()

        async def work(session: AsyncSession) -> str:
            async with session.call("shell", "c1") as call:
                return await self._told(call, ready)

        async with asyncio.TaskGroup() as group:
            async with AsyncSession("default", state=running.state) as session:
                task = group.create_task(work(session))
                await ready.wait()
            assert nothing_is_left()
        assert task.result() == "the launch was cancelled"
        assert sessions(running) == []

    async def test_what_is_not_open_makes_no_call(self, running: Gate) -> None:
        session = AsyncSession("default", state=running.state)
        with pytest.raises(LaunchError, match="not open"):
            session.call("shell", "c1")
        async with session:
            call = session.call("shell", "c1")
            with pytest.raises(LaunchError, match="not open"):
                await call.run(["true"])
        with pytest.raises(LaunchError, match="nobody"):
            async with AsyncSession("nobody", state=running.state):
                pass


class TestLaunchers:
    """What a launcher that is not the SDK may ask of the gate."""

    @pytest.mark.parametrize(
        ("more", "says"),
        [
            pytest.param({"credentials": ("api", "more")}, "does not hold 'more'", id="a credential more"),
            pytest.param({"policy": "other"}, "own policy, 'default'", id="another policy"),
            pytest.param({"call": ToolCall("t", "i", SessionId("nobody"))}, "no live session", id="no such parent"),
        ],
    )
    def test_a_child_that_asks_for_more_is_refused_by_the_gate_itself(
        self, running: Gate, more: dict[str, Any], says: str
    ) -> None:
        with Lease.open(running.state, Ask(policy="default", credentials=("api",), owner="team")) as parent:
            asked: dict[str, Any] = {"policy": "default", "owner": "x", "call": ToolCall.of("t", "i", parent=parent.id)}
            with pytest.raises(LaunchError, match=says):
                Lease.open(running.state, Ask(**(asked | more)))
            with Lease.open(running.state, Ask(**asked)) as child:
                (view,) = [one for one in sessions(running) if one["id"] == child.id]
                assert (view["owner"], view["call"]["parent"]) == ("team", parent.id)
                child.record(id="box", act="start")
            (line,) = running.audit(type="launch", session=child.id)
            assert (line["owner"], line["call"]["tool"]) == ("team", "t")

    def test_a_parent_whose_lease_ends_takes_its_children_along(self, running: Gate) -> None:
        with Lease.open(running.state, Ask(policy="default")) as parent:
            call = ToolCall.of("t", "i", parent=parent.id)
            child = Lease.open(running.state, Ask(policy="default", call=call))
        with child:
            running.wait_audit(lambda lines: any(line["reason"] == "parent_ended" for line in lines), session=child.id)
            assert sessions(running) == []
