"""A package index with one package, on a lab server: `/simple/tidy-demo/`."""

import hashlib
import io
import zipfile

from tests.lab.http import Reply, Request
from tests.lab.upstream import Connection, Upstream

__all__ = ["WHEEL", "serve_index"]

WHEEL = "tidy_demo-1.0-py3-none-any.whl"


def _wheel() -> bytes:
    """Return a package with one module."""
    out = io.BytesIO()
    info = "tidy_demo-1.0.dist-info"
    with zipfile.ZipFile(out, "w") as file:
        file.writestr("tidy_demo.py", "VALUE = 1\n")
        file.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tidy-demo\nVersion: 1.0\n")
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: lab\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/RECORD", "tidy_demo.py,,\n")
    return out.getvalue()


def serve_index(server: Upstream) -> None:
    """Serve the listing and the file."""
    data = _wheel()
    page = f'<a href="/files/{WHEEL}#sha256={hashlib.sha256(data).hexdigest()}">{WHEEL}</a>'.encode()

    async def listing(_: Connection, __: Request) -> Reply:
        return Reply(200, [("content-type", "text/html")], page)

    async def file(_: Connection, __: Request) -> Reply:
        return Reply(200, [("content-type", "application/octet-stream")], data)

    server.route("/simple/tidy-demo/", listing)
    server.route(f"/files/{WHEEL}", file)
