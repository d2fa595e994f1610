"""A small synchronous client of the gate's unix sockets."""

import contextlib
import http.client
import json
import os
import socket
import stat
import struct
import threading
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote, urlencode

from tidegate.audit.redact import showable
from tidegate.cli.place import also_there, find_state
from tidegate.cli.table import shown
from tidegate.errors import TidegateError

__all__ = ["AdminClient", "Refused", "segment"]

_MOST_BYTES = 16 * 1024 * 1024
_TIMEOUT_SECONDS = 130.0  # above the server's own, so that its words are what is shown
_PROBLEMS_SHOWN = 20


class Refused(TidegateError):
    """The gate has heard the request, and will not do what it asks."""


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, seconds: float) -> None:
        super().__init__("localhost", timeout=seconds)
        self._path, self._seconds = path, seconds
        self._whole: socket.socket | None = None
        self._late = False

    def connect(self) -> None:
        # By descriptor, without following a link: root talks to sockets in a folder of the gate's user, who must not
        # lead it to another one.
        descriptor = os.open(self._path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                raise ConnectionRefusedError
            self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            # Blocking, with the kernel's own limit: else a full queue, which any local user can fill, is a refusal.
            seconds, rest = divmod(self._seconds, 1)
            patience = struct.pack("@ll", int(seconds), int(rest * 1e6))
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, patience)
            self._whole = self.sock
            self.sock.connect(f"/proc/self/fd/{descriptor}")
            if self._late:
                raise TimeoutError("no answer in time")
            self.sock.settimeout(self.timeout)
        finally:
            os.close(descriptor)

    @property
    def late(self) -> bool:
        """Whether it was cut: what was read by then may be a part."""
        return self._late

    def cut(self) -> None:
        """End it, whoever else is reading: a time-out of the socket's begins anew with each byte.

        Where an answer ends with the connection, http.client lets go of `sock` before that is read.
        """
        self._late = True
        if self._whole is not None:
            with contextlib.suppress(OSError):
                self._whole.shutdown(socket.SHUT_RDWR)


class AdminClient:
    """Talks to the gate whose socket this is. Every fault is a `TidegateError` in the gate's own words."""

    def __init__(self, path: Path, *, seconds: float = _TIMEOUT_SECONDS, most_bytes: int | None = None) -> None:
        """Give an answer so much time in all, and so many bytes."""
        self._path = path
        self._seconds = seconds
        self._most_bytes = _MOST_BYTES if most_bytes is None else most_bytes

    @classmethod
    def find(cls, *, config: Path | None, state_dir: Path | None, name: str = "admin.sock") -> "AdminClient":
        """Return the client of the gate that these options mean."""
        return cls(find_state(config=config, state_dir=state_dir) / name)

    def get(self, path: str, **query: str | None) -> dict[str, object]:
        """GET a JSON object."""
        words = {key: value for key, value in query.items() if value is not None}
        return self._object("GET", f"{path}?{urlencode(words)}" if words else path, None)

    def post(self, path: str, body: Mapping[str, object] | None = None) -> dict[str, object]:
        """POST a JSON object and return the answer's."""
        return self._object("POST", path, {key: value for key, value in (body or {}).items() if value is not None})

    def delete(self, path: str) -> dict[str, object]:
        """DELETE and return the answer's JSON object."""
        return self._object("DELETE", path, None)

    def ready(self) -> tuple[bool, dict[str, object]]:
        """Return whether the gate serves, and its own account of it."""
        status, body = self._send("GET", "/readyz", None)
        return status == 200, _parse(body)

    def _object(self, method: str, path: str, body: Mapping[str, object] | None) -> dict[str, object]:
        status, answer = self._send(method, path, body)
        value = _parse(answer)
        if status >= 400:
            raise _fault(status, value)
        return value

    def _send(self, method: str, path: str, body: Mapping[str, object] | None) -> tuple[int, bytes]:
        connection = _UnixConnection(self._path, self._seconds)
        patience = threading.Timer(self._seconds, connection.cut)
        patience.daemon = True
        patience.start()
        try:
            data = None if body is None else json.dumps(body).encode()
            headers = {} if data is None else {"Content-Type": "application/json"}
            connection.request(method, path, data, headers)
            answer = connection.getresponse()
            read = _bounded(answer, self._most_bytes)
            if connection.late:
                raise TimeoutError("no answer in time")
            return answer.status, read
        except (FileNotFoundError, ConnectionRefusedError) as fault:
            raise TidegateError(
                "no gate is running there",
                where=str(self._path),
                hint=f"start it with `tidegate up`, or give --state-dir{also_there(self._path)}",
            ) from fault
        except PermissionError as fault:
            raise TidegateError(
                "only the operator of the gate may use this socket",
                where=str(self._path),
                hint="run this as the user that runs `tidegate up`",
            ) from fault
        except (ConnectionResetError, BrokenPipeError) as fault:  # http.client's own RemoteDisconnected is one
            raise TidegateError(
                "the gate closed the connection",
                where=str(self._path),
                hint="run this as root or as the gate's own user; if you are, try again",
            ) from fault
        except (OSError, http.client.HTTPException) as fault:
            raise TidegateError(f"the gate did not answer: {fault}", where=str(self._path)) from fault
        except (ValueError, OverflowError, MemoryError) as fault:  # of lengths that are none, in http.client
            raise TidegateError("the gate's answer cannot be read", where=str(self._path)) from fault
        finally:
            patience.cancel()
            connection.close()


def _bounded(answer: http.client.HTTPResponse, most: int) -> bytes:
    """Read the body, whatever length it claims. Raises `HTTPException` for one that is too long or is cut short.

    In chunks no gate answers, and http.client takes a size of -1 for all that comes, however little it was asked for.
    """
    if answer.chunked:
        raise http.client.HTTPException("an answer in chunks")
    claimed = answer.length
    body = answer.read(most + 1)
    if len(body) > most:
        raise http.client.HTTPException(f"more than {most} bytes")
    if claimed is not None and len(body) < claimed:
        raise http.client.IncompleteRead(body, claimed - len(body))
    return body


def _parse(body: bytes) -> dict[str, object]:
    """Return the answer as an object, without text that drives a terminal: the gate may have fallen, and root asks."""
    try:
        value = _harmless(json.loads(body or b"{}"))
    except (ValueError, RecursionError):  # the second: nested without end
        value = None
    return value if isinstance(value, dict) else {"error": {"what": shown(body[:200].decode("utf-8", "replace"))}}


def _harmless(value: object) -> object:
    if isinstance(value, str):
        return showable(value)
    if isinstance(value, list):
        return [_harmless(item) for item in value]
    if isinstance(value, dict):
        return {showable(str(key)): _harmless(item) for key, item in value.items()}
    return value


def _fault(status: int, value: Mapping[str, object]) -> TidegateError:
    error = value.get("error")
    if not isinstance(error, Mapping):
        return Refused(f"the gate answered {status}")
    problems = error.get("problems")
    what = shown(str(error.get("what") or f"the gate answered {status}"))
    if isinstance(problems, list):
        what = "; ".join(shown(str(problem)) for problem in problems[:_PROBLEMS_SHOWN])
        if more := len(problems[_PROBLEMS_SHOWN:]):
            what += f"; {more} more"
    kind = Refused if status < 500 else TidegateError
    return kind(what, where=shown(str(error.get("where") or "")), hint=shown(str(error.get("hint") or "")))


def segment(text: str) -> str:
    """Return a word as one segment of a path."""
    return quote(text, safe="")
