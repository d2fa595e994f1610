import json

from tidegate_launcher.oci.form import Linux, Mount, Namespace, Process, Rlimit, Root, Seccomp, Spec, User, encode


def test_is_written_in_the_words_of_the_specification() -> None:
    spec = Spec(
        process=Process(
            user=User(uid=1, gid=2),
            args=("a",),
            env=("B=c",),
            cwd="/d",
            rlimits=(Rlimit(type="RLIMIT_CORE", soft=0, hard=0),),
        ),
        root=Root(path="/r"),
        hostname="h",
        mounts=(Mount(destination="/m", type="bind", source="/s", options=("ro",)),),
        linux=Linux(
            namespaces=(Namespace(type="pid"), Namespace(type="network", path="/n")),
            seccomp=Seccomp(default_action="SCMP_ACT_ALLOW", architectures=(), syscalls=()),
            masked_paths=("/x",),
        ),
    )
    empty = {key: [] for key in ("bounding", "effective", "inheritable", "permitted", "ambient")}
    assert json.loads(encode(spec)) == {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": 1, "gid": 2, "additionalGids": []},
            "args": ["a"],
            "env": ["B=c"],
            "cwd": "/d",
            "rlimits": [{"type": "RLIMIT_CORE", "soft": 0, "hard": 0}],
            "capabilities": empty,
            "noNewPrivileges": True,
            "terminal": False,
        },
        "root": {"path": "/r", "readonly": True},
        "hostname": "h",
        "mounts": [{"destination": "/m", "type": "bind", "source": "/s", "options": ["ro"]}],
        "linux": {
            "namespaces": [{"type": "pid"}, {"type": "network", "path": "/n"}],
            "seccomp": {"defaultAction": "SCMP_ACT_ALLOW", "architectures": [], "syscalls": []},
            "maskedPaths": ["/x"],
        },
    }
