"""`make demo` on loopback, where no rule need name port 443: each refusal shows its reason."""

import contextlib
import re
from pathlib import Path

import pytest

from tests.lab.certs import Authority
from tests.lab.demo import CREDENTIALS, Client, _reason, policy, show_tricks
from tests.lab.gate import configuration, gate
from tests.lab.internet import internet, loopback_place
from tests.lab.screen import Failed, Screen
from tests.lab.sockets import free_port


def test_a_refusal_without_a_reason_is_a_failed_step() -> None:
    assert _reason('{"reason": "not_in_allowlist"}') == "not_in_allowlist"
    with pytest.raises(Failed):
        _reason("")


def test_each_refusal_shows_its_reason_with_no_index_in_the_policy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokens = {"DEMO_CODE_TOKEN": "c3d4" * 10, "DEMO_PARTNER_KEY": "p1q2" * 10}
    with contextlib.ExitStack() as stack:
        ca = stack.enter_context(Authority())
        net = stack.enter_context(internet(loopback_place(), ca, git_token=tokens["DEMO_CODE_TOKEN"]))
        whole = configuration(ca=ca, credentials=CREDENTIALS)
        whole["policies"] = {"default": policy(net, pip=None)}
        whole["resolver"] = {"zones": {"test.": [net.dns.address]}}
        running = stack.enter_context(gate(whole, env=tokens, host="127.0.0.1", port=free_port()))
        screen = Screen()
        show_tricks(screen, Client(net, running.session(credentials=["code", "partner"]), tmp_path))
    shown = capsys.readouterr().out
    assert screen.failures == 0, shown
    assert re.findall(r"\d{3} (\w+)", shown) == ["authority_mismatch", "redirect_denied", "not_in_allowlist"]
