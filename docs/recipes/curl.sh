#!/bin/sh
# curl through the gate, with a placeholder where the key would be.
#   tidegate exec --credential partner -- sh docs/recipes/curl.sh https://api.partner.test:8443/me
# curl reads https_proxy and CURL_CA_BUNDLE, which the session's environment sets; nothing else is needed.
set -eu
url=$1
curl --silent --show-error --fail-with-body --header "Authorization: Bearer $PARTNER_KEY" "$url"
