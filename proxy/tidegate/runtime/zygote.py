"""The gate's zygote: imports the engine once and forks a worker whenever the supervisor asks.

Run as `zygote PARENT DESCRIPTOR MODULE`, where the module has the worker's `main`. It reads nothing but the
supervisor's requests. As root it stays root, so that no worker can signal or trace it; each worker takes the gate's
uid before it runs its first line.

| supervisor says | zygote answers |
|---|---|
| | `{push: ready}` once, after the import |
| `{fork: index}` with the worker's two sockets (control, doors) as ancillary data | `{push: forked, index, pid}` |
| | `{push: exited, index, pid, status}` when that worker ends |

The forked worker reads one `{settings, keeper, uid, gid}` frame from its control socket, then calls the
module's `main(control, settings, keeper socket, index, bound, doors)`.
"""

import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from tidegate.errors import TidegateError
from tidegate.runtime import control
from tidegate.runtime.confine import become, die_with_parent, keep_imports, limit
from tidegate.runtime.identity import Identity
from tidegate.syscall import file_user

__all__ = ["main"]

_SOCKETS = 2


def main() -> None:
    """Serve until the supervisor closes the socket."""
    die_with_parent(int(sys.argv[1]))
    limit()
    sock = socket.socket(fileno=int(sys.argv[2]))
    sock.set_inheritable(False)
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    worker = importlib.import_module(sys.argv[3])
    gc.collect()
    gc.freeze()  # shared pages stay shared: no collector writes into the objects of the import
    control.send(sock, {"push": "ready"})
    workers: dict[int, int] = {}
    with contextlib.suppress(ConnectionError):  # the supervisor is gone; the workers follow by their death signal
        while _turn(sock, wake_read, workers, worker):
            pass


def _turn(sock: socket.socket, wake: int, workers: dict[int, int], module: ModuleType) -> bool:
    ready, _, _ = select.select([sock.fileno(), wake], [], [])
    if wake in ready:
        with contextlib.suppress(BlockingIOError):
            os.read(wake, 4096)
        _reap(sock, workers)
    if sock.fileno() not in ready:
        return True
    # The worker's sockets ride on the first byte of the frame.
    data, descriptors, _, _ = socket.recv_fds(sock, 1, _SOCKETS)
    if not data:
        return False
    request = control.receive(sock)
    if request is None:
        return False
    index = int(str(request["fork"]))
    pid = os.fork()
    if pid == 0:
        link, doors = (socket.socket(fileno=number) for number in descriptors)
        _worker(sock, link, doors, index, module)
    for number in descriptors:
        os.close(number)
    workers[pid] = index
    control.send(sock, {"push": "forked", "index": index, "pid": pid})
    return True


def _reap(sock: socket.socket, workers: dict[int, int]) -> None:
    while workers:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        index = workers.pop(pid, -1)
        control.send(sock, {"push": "exited", "index": index, "pid": pid, "status": os.waitstatus_to_exitcode(status)})


def _worker(
    zygote: socket.socket, link: socket.socket, doors: socket.socket, index: int, module: ModuleType
) -> NoReturn:
    code = 1
    try:
        parent = os.getppid()
        zygote.close()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        start = control.receive(link)
        if start is not None:
            identity = Identity(int(str(start["uid"])), int(str(start["gid"])))
            settings = start["settings"]
            if not isinstance(settings, bytes):
                raise TidegateError("the supervisor sent no settings")
            # As the worker's user: what a socket sends is held by the user that made it, whoever has it later.
            with file_user(identity.uid):
                bound = module.bind(settings)
            keep_imports(identity)
            become(identity, parent=parent)
            module.main(link, settings, Path(str(start["keeper"])), index, bound, doors)
            code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException as fault:  # the last line of a process: it must be said, and the process must end
        _say(fault, index)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _say(fault: BaseException, index: int) -> None:
    if os.environ.get("TIDEGATE_TRACEBACK") or not isinstance(fault, TidegateError):
        traceback.print_exception(fault)
    sys.stderr.write(f"tidegate: error: worker {index}: {fault}\n")


if __name__ == "__main__":
    main()
