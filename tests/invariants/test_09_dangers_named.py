"""Invariant 9: dangerous settings are named so, warn at start, and show in health output."""

import datetime

from tests.lab.gate import configuration, gate


def test_each_danger_warns_at_the_start_and_shows_in_health() -> None:
    until = (datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    allow = [
        {"host": "*.github.io", "unsafe_wildcard": True},
        {
            "host": "pinned.test",
            "tls": "unsafe_passthrough",
            "limits": {"upload_bytes_per_hour": 1000},
        },
    ]
    config = configuration(
        allow=allow,
        policy={"unsafe_observe_until": until},
        credentials={
            "short": {
                "source": {"env": "SHORT_KEY"},
                "for": [{"host": "api.short.test"}],
                "place": {"header": "X-Key", "format": "{secret}"},
                "placeholder": {"shape": "generic", "env": "SHORT"},
                "unsafe_short_secret": True,
            }
        },
    )
    names = ("unsafe_wildcard", "unsafe_passthrough", "unsafe_observe_until", "unsafe_short_secret")
    with gate(config, env={"SHORT_KEY": "short-1"}) as running:
        said = running.stderr
        warnings = running.admin("GET", "/readyz")[1]["warnings"]
        health = running.cli("health", "--state-dir", str(running.state), check=False)
    for name in names:
        assert f"warning: {name}" in said
        assert any(warning.startswith(name) for warning in warnings)
        assert name in health.stdout + health.stderr


def test_without_them_nothing_is_said() -> None:
    with gate(configuration()) as running:
        assert "unsafe_" not in running.stderr.replace("unsafe_shared_uid", "")
        warnings = running.admin("GET", "/readyz")[1]["warnings"]
    # What the machine's kernel cannot hold is said too, but is nobody's setting.
    assert not [text for text in warnings if not text.startswith(("unsafe_shared_uid", "not held back on"))]
