"""The second line beside another's rules, which turn packets: what was sent to whom counts, and each packet anew."""

import os

import pytest

from tests.lab.unshared import neighbour, unshared

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces and their rules")

_UID = 64732

# Asks, as one user or another, what a server in the next namespace answers; says who was answered.
_TURNED = f"""
import os, socket, subprocess, sys
from ipaddress import ip_network
from tidegate_launcher.wall import nft
from tidegate_launcher.wall.leash import Leash, leash_transaction

def run(*words, **more):
    return subprocess.run(words, check=True, text=True, **more)

far = ("nsenter", "-t", sys.argv[1], "-n")
run("ip", "link", "set", "lo", "up")
run("ip", "link", "add", "near", "type", "veth", "peer", "name", "far", "netns", sys.argv[1])
for where, name, host in ((), "near", 1), (far, "far", 2):
    for network in ("10.5.0", "198.41.0"):
        run(*where, "ip", "address", "add", f"{{network}}.{{host}}/24", "dev", name)
    run(*where, "ip", "link", "set", name, "up")
run("ip", "route", "add", "default", "via", "198.41.0.2")
nft.apply(leash_transaction(Leash({_UID}, (), (ip_network("198.41.0.1/32"),))))
run("nft", "-f", "-", input='''
table ip engine {{
    chain sent {{
        type nat hook output priority -100
        ip daddr 169.254.169.254 dnat to 198.41.0.2
        ip daddr 198.41.0.1 udp dport 5432 dnat to 10.5.0.2:161
    }}
    chain came {{
        type nat hook prerouting priority -100
        ip daddr 169.254.169.254 udp dport 53 dnat to 198.41.0.1:5353
    }}
}}
''')
serve = '''
import socket
with socket.socket(type=socket.SOCK_DGRAM) as sock:
    sock.bind(("", 161))
    print(flush=True)
    while True:
        sock.sendto(*sock.recvfrom(9))
'''
ask = '''
import os, socket, sys
os.setuid(int(sys.argv[1]))
with socket.socket(type=socket.SOCK_DGRAM) as sock:
    sock.bind(("", int(sys.argv[4])))
    sock.settimeout(2)
    try:
        sock.sendto(b"x", (sys.argv[2], int(sys.argv[3])))
        print("answered" if sock.recv(9) else "")
    except PermissionError:
        print("dropped")
'''
answer = '''
import os, socket
os.setuid({_UID})
with socket.socket(type=socket.SOCK_DGRAM) as sock:
    sock.bind(("198.41.0.1", 5353))
    print(flush=True)
    sock.sendto(*sock.recvfrom(9))
'''
server = subprocess.Popen([*far, sys.executable, "-c", serve], stdout=subprocess.PIPE)
gate = subprocess.Popen([sys.executable, "-c", answer], stdout=subprocess.PIPE)
try:
    server.stdout.readline(), gate.stdout.readline()
    for who, host, port, own in (
        ("{_UID}", "10.5.0.2", "161", "40000"),
        ("1234", "10.5.0.2", "161", "40000"),
        ("{_UID}", "10.5.0.2", "161", "40000"),
        ("{_UID}", "198.41.0.2", "161", "0"),
        ("{_UID}", "169.254.169.254", "161", "0"),
        ("{_UID}", "198.41.0.1", "5432", "0"),
    ):
        run(sys.executable, "-c", ask, who, host, port, own)
    run(*far, "ip", "route", "add", "169.254.169.254", "via", "198.41.0.1")
    run(*far, sys.executable, "-c", ask, "0", "169.254.169.254", "53", "0")
finally:
    server.kill()
    gate.kill()
"""


def test_a_packet_is_judged_by_what_it_was_sent_to_and_each_anew() -> None:
    with neighbour() as far:
        told = unshared(_TURNED, str(far), seconds=40)
    assert told.split() == [
        "dropped", "answered",
        "dropped",  # though another user's connection by that port stands
        "answered",
        "dropped",  # metadata, which an agent turns to a public address
        "answered",  # a port that a container engine publishes, at an address that a rule names
        "answered",  # who asked for metadata, and was turned to the gate
    ]  # fmt: skip
