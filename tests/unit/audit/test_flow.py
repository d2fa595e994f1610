"""Flow ids."""

import re
import subprocess
import sys

from tidegate.audit.flow import new_flow


def test_flow_ids_are_sixteen_hex_characters_and_never_repeat() -> None:
    ids = [new_flow() for _ in range(5000)]
    assert all(re.fullmatch("[0-9a-f]{16}", one) for one in ids)
    assert len(set(ids)) == len(ids)


def test_a_forked_worker_does_not_hand_out_its_parents_ids() -> None:
    # In a process of its own: pytest has threads, and forking with threads is not what is tested here.
    program = """
import os
from tidegate.audit.flow import new_flow
new_flow()
reader, writer = os.pipe()
if os.fork() == 0:
    os.write(writer, new_flow().encode())
    os._exit(0)
os.wait()
print(os.read(reader, 16).decode() in {new_flow() for _ in range(600)})
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
