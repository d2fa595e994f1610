"""For pytest: the fixture `egress`, by which a test says what its agent may have reached.

    def test_the_agent_is_not_talked_into_it(egress, agent):
        agent.read("page-with-an-injection.html")
        egress.assert_denied("evil.test")
        egress.assert_allowed("api.github.com")

It reads the log of a running gate, the one with the state folder `tidegate_state_dir` of pytest's configuration, else
the one that the command line would find ($TIDEGATE_STATE_DIR, $TIDEGATE_CONFIG). pytest finds it by its entry point.
"""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tidegate.sdk.egress import Egress, EgressLog

__all__ = ["egress"]

_OPTION = "tidegate_state_dir"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the key of pytest's configuration."""
    parser.addini(_OPTION, "State folder of the running Tidegate gate whose log `egress` reads.", default="")


@pytest.fixture(scope="session")
def _egress_log(pytestconfig: pytest.Config) -> "EgressLog":
    # Every pytest in this environment loads this module, whether or not a test asks for it.
    from tidegate.errors import TidegateError
    from tidegate.sdk.egress import EgressLog
    from tidegate.sdk.place import audit_folder

    given = str(pytestconfig.getini(_OPTION))
    folder = audit_folder(pytestconfig.rootpath / given if given else None)
    if not folder.is_dir():
        pytest.fail(f"no gate's log is in {folder}: start `tidegate up`, or set {_OPTION}", pytrace=False)
    try:
        return EgressLog(folder)
    except TidegateError as fault:
        pytest.fail(f"the gate's log cannot be read: {fault}", pytrace=False)


@pytest.fixture
def egress(_egress_log: "EgressLog") -> "Egress":
    """What the running gate decides during this test: `assert_denied(host, reason=…)`, `assert_allowed(host)`."""
    from tidegate.sdk.egress import Egress

    return Egress(_egress_log)
