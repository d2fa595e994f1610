"""Git over https: `git http-backend` behind a lab server, open only to one user and password."""

import asyncio
import base64
import os
import subprocess
from pathlib import Path

from tests.lab.http import Reply, Request
from tests.lab.upstream import Connection, Handler

__all__ = ["git_backend", "make_repository", "run_git"]


def run_git(*arguments: str, cwd: Path) -> str:
    """Run git with a configuration of its own; return its output."""
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(cwd),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": "Lab",
        "GIT_AUTHOR_EMAIL": "lab@code.test",
        "GIT_COMMITTER_NAME": "Lab",
        "GIT_COMMITTER_EMAIL": "lab@code.test",
    }
    return subprocess.run(
        ["git", *arguments], cwd=cwd, env=env, check=True, capture_output=True, text=True, timeout=30
    ).stdout


def make_repository(root: Path, name: str, *, files: int = 20) -> Path:
    """Make a bare repository `root/name` with one commit of some real content; return its path."""
    bare = root / name
    bare.parent.mkdir(parents=True, exist_ok=True)
    run_git("init", "--quiet", "--bare", "--initial-branch=main", str(bare), cwd=root)
    run_git("config", "http.receivepack", "true", cwd=bare)
    work = root / "seed"
    run_git("clone", "--quiet", str(bare), str(work), cwd=root)
    for number in range(files):
        (work / f"file{number}.txt").write_bytes(base64.encodebytes(os.urandom(2048)))
    run_git("add", ".", cwd=work)
    run_git("commit", "--quiet", "--message", "Begin", cwd=work)
    run_git("push", "--quiet", "origin", "HEAD:main", cwd=work)
    return bare


def git_backend(root: Path, *, user: str, password: str) -> Handler:
    """Return a handler that serves the repositories below `root`; without the right Basic credential, 401."""
    wanted = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()

    async def handler(connection: Connection, request: Request) -> Reply:
        if request.header("authorization") != wanted:
            return Reply(401, [("www-authenticate", 'Basic realm="code"')], b"who are you?\n")
        return await _run_backend(root, request)

    return handler


async def _run_backend(root: Path, request: Request) -> Reply:
    env = {
        "PATH": os.environ["PATH"],
        "GIT_PROJECT_ROOT": str(root),
        "GIT_HTTP_EXPORT_ALL": "1",
        "GIT_CONFIG_NOSYSTEM": "1",
        "HOME": str(root),
        "REQUEST_METHOD": request.method,
        "PATH_INFO": request.path,
        "QUERY_STRING": request.target.partition("?")[2],
        "CONTENT_TYPE": request.header("content-type") or "",
        "CONTENT_LENGTH": str(len(request.body)),
        "HTTP_CONTENT_ENCODING": request.header("content-encoding") or "",
        "GIT_PROTOCOL": request.header("git-protocol") or "",
        "REMOTE_USER": "lab",
    }
    process = await asyncio.create_subprocess_exec(
        "git", "http-backend", env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    output, _ = await asyncio.wait_for(process.communicate(request.body), 30)
    head, _, body = output.partition(b"\r\n\r\n")
    status, headers = 200, []
    for line in head.decode("latin-1").split("\r\n"):
        name, _, value = line.partition(":")
        if name.lower() == "status":
            status = int(value.split()[0])
        else:
            headers.append((name, value.strip()))
    return Reply(status, headers, body)
