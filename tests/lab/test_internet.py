"""The servers behind the gate, asked without one."""

import subprocess
from pathlib import Path

from tests.lab.certs import Authority
from tests.lab.gitserver import run_git
from tests.lab.internet import API, CODE, internet, loopback_place


def test_git_clones_and_pushes_with_the_token_only(tmp_path: Path) -> None:
    with Authority() as ca, internet(loopback_place(), ca, git_token="right") as net:
        port = net.place.https_port
        common = ("-c", f"http.sslCAInfo={ca.pem}", "-c", f"http.curloptResolve={CODE}:{port}:{net.place.code}")
        url = net.place.url(CODE, "/acme/demo.git").replace("https://", "https://x-access-token:{}@")
        run_git(*common, "clone", "--quiet", url.format("right"), "work", cwd=tmp_path)
        (tmp_path / "work" / "new.txt").write_text("new\n")
        run_git("add", ".", cwd=tmp_path / "work")
        run_git("commit", "--quiet", "-m", "More", cwd=tmp_path / "work")
        run_git(*common, "push", "--quiet", "origin", "HEAD:main", cwd=tmp_path / "work")
        assert run_git("log", "--format=%s", "main", cwd=net.repository).split() == ["More", "Begin"]
        wrong = subprocess.run(
            ["git", *common, "clone", url.format("wrong"), "w"],
            cwd=tmp_path,
            capture_output=True,
            env={"PATH": "/usr/bin:/bin", "GIT_TERMINAL_PROMPT": "0", "HOME": str(tmp_path)},
        )
        assert wrong.returncode != 0
        assert net.api.connections == 0
        assert net.place.url(API, "/x") == f"https://{API}:{port}/x"
