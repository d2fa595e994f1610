"""A process that holds one compiled guest, and runs it anew for each call: `python -m tidegate_launcher.wasm.worker`.

Each call has a store of its own: memory, globals and tables are made for it and go with it, so that nothing of one is
in the next. The guest's only way to this process are WASI's calls, and it is given no folder and no socket. Time is
held twice: by the engine's epoch here, and by the launcher, which ends the process: a guest that sleeps in a call of
the engine's looks at no epoch. When the guest is compiled the process gives up what it has: its user, sockets,
programs, namespaces.
"""

import os
import platform
import select
import sys
import threading
import time
from importlib.metadata import version
from typing import Final

import wasmtime

from tidegate import seccomp
from tidegate.syscall import prctl
from tidegate_launcher.job import GUEST_GID, GUEST_UID
from tidegate_launcher.wasm.call import Answer, Call, Limit, read_frame, write_frame
from tidegate_launcher.wasm.guest import GUESTS, Guest, compiled_path, guest_path, keep

__all__ = ["Machine", "main"]

_NO_END: Final = 1 << 62
_ABORTED, _OVERFLOWN = 134, 139
_TABLE_ELEMENTS: Final = 100_000
_PR_SET_DUMPABLE: Final = 4
_PR_SET_NO_NEW_PRIVS: Final = 38


class Machine:
    """An engine and the compiled guest."""

    def __init__(self, guest: Guest) -> None:
        """Compile the guest, or take what was compiled before. Raises `LaunchError`."""
        config = wasmtime.Config()
        config.consume_fuel = True
        config.epoch_interruption = True
        config.wasm_threads = False
        self.engine = wasmtime.Engine(config)
        path = guest_path(guest, os.environ)
        engine_id = f"{version('wasmtime')}-{platform.machine()}-1"
        kept = compiled_path(guest, os.environ, engine_id)
        try:
            self.module = wasmtime.Module.deserialize_file(self.engine, str(kept))
        except wasmtime.WasmtimeError:
            self.module = wasmtime.Module.from_file(self.engine, str(path))
            keep(kept, bytes(self.module.serialize()))
        self.linker = wasmtime.Linker(self.engine)
        self.linker.define_wasi()
        # The engine opens standard input by name: this one has none for anybody else.
        self.stdin = open(os.memfd_create("stdin"), "r+b", buffering=0)  # noqa: SIM115  # as long as this process

    def run(self, call: Call) -> Answer:
        """Run the guest once."""
        begun = time.monotonic()
        output = _Output(self.engine, call.output_bytes)
        store = self._store(call, output)
        timer = threading.Timer(call.seconds, self.engine.increment_epoch)
        timer.start()
        try:
            code, limit = self._start(store, output)
        finally:
            timer.cancel()
            timer.join()
            store.close()
        stdout, stderr = bytes(output.kept[0]), bytes(output.kept[1])
        return Answer(code=code, limit=limit, stdout=stdout, stderr=stderr, seconds=time.monotonic() - begun)

    def _store(self, call: Call, output: "_Output") -> wasmtime.Store:
        wasi = wasmtime.WasiConfig()
        wasi.argv = list(call.argv)
        wasi.env = list(call.environment)
        wasi.stdout_custom = lambda data: output.take(0, data)
        wasi.stderr_custom = lambda data: output.take(1, data)
        if call.stdin:
            self.stdin.seek(0)
            self.stdin.truncate()
            self.stdin.write(call.stdin)
            wasi.stdin_file = f"/proc/self/fd/{self.stdin.fileno()}"
        store = wasmtime.Store(self.engine)
        store.set_wasi(wasi)
        store.set_limits(memory_size=call.memory_bytes, table_elements=_TABLE_ELEMENTS, instances=1, memories=1)
        store.set_fuel(_NO_END if call.fuel is None else call.fuel)
        store.set_epoch_deadline(1)
        return store

    def _start(self, store: wasmtime.Store, output: "_Output") -> tuple[int, Limit]:
        try:
            instance = self.linker.instantiate(store, self.module)
            start = instance.exports(store)["_start"]
            if not isinstance(start, wasmtime.Func):
                raise wasmtime.WasmtimeError("the guest has no start")
            start(store)
        except wasmtime.ExitTrap as ended:
            return ended.code, "output" if output.over else ""
        except wasmtime.Trap as trap:
            if output.over:
                return _ABORTED, "output"
            match trap.trap_code:
                case wasmtime.TrapCode.INTERRUPT:
                    return _ABORTED, "time"
                case wasmtime.TrapCode.OUT_OF_FUEL:
                    return _ABORTED, "fuel"
                case wasmtime.TrapCode.STACK_OVERFLOW:
                    return _OVERFLOWN, ""
            return _ABORTED, ""
        except wasmtime.WasmtimeError as fault:
            # A memory that is too small for the guest to begin with.
            output.take(1, f"tidegate: {str(fault).splitlines()[0]}\n".encode())
            return _ABORTED, ""
        return 0, "output" if output.over else ""


class _Output:
    """What the guest writes, up to the limit; the first byte over it ends the guest."""

    def __init__(self, engine: wasmtime.Engine, limit: int) -> None:
        self.kept = (bytearray(), bytearray())
        self.over = False
        self._engine, self._limit = engine, limit

    def take(self, place: int, data: bytes) -> None:
        kept = self.kept[place]
        room = self._limit - len(kept)
        kept += data[:room]
        if len(data) > room and not self.over:
            self.over = True
            self._engine.increment_epoch()


def _give_up() -> None:
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(GUEST_GID, GUEST_GID, GUEST_GID)
        os.setresuid(GUEST_UID, GUEST_UID, GUEST_UID)
    prctl(_PR_SET_NO_NEW_PRIVS, 1)
    # A change of user takes /proc/self away, by which standard input is opened.
    prctl(_PR_SET_DUMPABLE, 1)
    if seccomp.supported():
        seccomp.install(families=())


def _end_with_the_launcher() -> None:
    """End at once when nobody asks any more. The kernel's own way ends with the thread that started this process."""
    poller = select.poll()
    poller.register(0, 0)
    poller.poll()
    os._exit(0)


def main(file: str) -> int:
    """Serve calls on standard input until it ends."""
    machine = Machine(next(guest for guest in GUESTS if guest.file == file))
    _give_up()
    threading.Thread(target=_end_with_the_launcher, daemon=True).start()
    with open(0, "rb", buffering=0) as asks, open(os.dup(1), "wb", buffering=0) as answers:
        write_frame(answers, Answer(code=0))  # compiled
        while (call := read_frame(asks, Call)) is not None:
            write_frame(answers, machine.run(call))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
