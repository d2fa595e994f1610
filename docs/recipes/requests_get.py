"""Python's requests through the gate, with a placeholder where the key would be.

    tidegate exec --credential partner -- python3 docs/recipes/requests_get.py https://api.partner.test:8443/me

requests reads HTTPS_PROXY and REQUESTS_CA_BUNDLE, which the session's environment sets. A denial is an
ordinary reply: 403 with a reason, which a retry will not change.
"""

import os
import sys

import requests

reply = requests.get(sys.argv[1], headers={"Authorization": f"Bearer {os.environ['PARTNER_KEY']}"}, timeout=30)
if reply.headers.get("Content-Type") == "application/problem+json":
    sys.exit(f"denied: {reply.json()['reason']}: {reply.json()['detail']}")
reply.raise_for_status()
sys.stdout.write(reply.text)
