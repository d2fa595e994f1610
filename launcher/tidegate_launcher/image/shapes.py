"""What a credential looks like: by where it lies, and by its own form. Two tables, and nothing else.

Forms are anchored in a vendor's prefix or in a format, so that ordinary code does not match; what has neither, such as
a bare password, is known only by the file that it lies in.
"""

from typing import Final, NamedTuple

__all__ = ["ENVIRONMENT", "FORMS", "KEYS", "PLACES", "Form", "Place"]


class Place(NamedTuple):
    """A path's end, whatever home it lies in, and what must be in the file (a regular expression; none: anything)."""

    path: str
    kind: str
    holds: str = ""


class Form(NamedTuple):
    """The form of a secret's text (RE2)."""

    kind: str
    pattern: str


_FILLED = r"\S"
_WORD = r"(?i)(password|passwd|token|secret)"

PLACES: Final = (
    Place(".aws/credentials", "AWS credentials", _FILLED),
    Place(".aws/sso/cache/*", "AWS single sign-on", _FILLED),
    Place(".aws/cli/cache/*", "AWS session", _FILLED),
    Place(".config/gcloud/credentials.db", "Google Cloud credentials"),
    Place(".config/gcloud/access_tokens.db", "Google Cloud tokens"),
    Place(".config/gcloud/application_default_credentials.json", "Google Cloud credentials"),
    Place(".config/gcloud/legacy_credentials/*", "Google Cloud credentials"),
    Place(".azure/accessTokens.json", "Azure tokens"),
    Place(".azure/msal_token_cache.*", "Azure tokens"),
    Place(".azure/service_principal_entries.*", "Azure credentials"),
    Place(".oci/config", "Oracle Cloud configuration", r"key_file"),
    Place(".config/doctl/config.yaml", "DigitalOcean token", r"access-token"),
    Place(".config/hcloud/cli.toml", "Hetzner token", r"token"),
    Place(".config/gh/hosts.yml", "GitHub token", r"oauth_token"),
    Place(".config/glab-cli/config.yml", "GitLab token", r"token:\s*\S"),
    Place(".netrc", "netrc passwords", r"(?i)password"),
    Place(".git-credentials", "git passwords", r"://"),
    Place(".config/git/credentials", "git passwords", r"://"),
    Place(".docker/config.json", "container registry passwords", r'"(auth|identitytoken|registrytoken)"\s*:\s*"[^"]'),
    Place(".dockercfg", "container registry passwords", r'"auth"\s*:\s*"[^"]'),
    Place("containers/auth.json", "container registry passwords", r'"auth"\s*:\s*"[^"]'),
    Place(".kube/config", "Kubernetes credentials", r"(client-key-data|token|password|client-key)\s*:"),
    Place("etc/kubernetes/admin.conf", "Kubernetes credentials"),
    Place("run/secrets/kubernetes.io/serviceaccount/token", "Kubernetes service account"),
    Place(".npmrc", "npm token", r"(?m)(_authToken|_auth|_password)\s*=\s*[^\s$]"),
    Place(".yarnrc.yml", "npm token", r"npmAuthToken:\s*[^\s$]"),
    Place(".pypirc", "package index password", r"(?m)^\s*password\s*[=:]\s*\S"),
    Place(".config/pip/pip.conf", "package index password", r"://[^/\s:@]+:[^/\s@]+@"),
    Place("etc/pip.conf", "package index password", r"://[^/\s:@]+:[^/\s@]+@"),
    Place(".gem/credentials", "gem token", _FILLED),
    Place(".cargo/credentials", "cargo token", _WORD),
    Place(".cargo/credentials.toml", "cargo token", _WORD),
    Place(".m2/settings.xml", "Maven password", r"<password>[^<$]"),
    Place(".composer/auth.json", "composer token", r'"[^"]+"\s*:\s*"[^"]'),
    Place(".terraform.d/credentials.tfrc.json", "Terraform token", r'"token"'),
    Place(".vault-token", "Vault token", _FILLED),
    Place(".pgpass", "PostgreSQL password", _FILLED),
    Place(".my.cnf", "MySQL password", r"(?m)^\s*password\s*="),
    Place(".huggingface/token", "Hugging Face token", _FILLED),
    Place(".cache/huggingface/token", "Hugging Face token", _FILLED),
    Place(".claude/.credentials.json", "Anthropic session"),
    Place(".codex/auth.json", "OpenAI session"),
    Place(".gnupg/private-keys-v1.d/*", "OpenPGP private key"),
    Place(".password-store/*", "password store"),
)
"""Where credentials lie. A `*` stands for whatever lies there or below."""

FORMS: Final = (
    Form(
        "private key",
        r"-----BEGIN (?:[A-Z]+ )?PRIVATE KEY-----[\r\n]+(?:[A-Za-z-]+: [^\r\n]+[\r\n]+)*[A-Za-z0-9+/=\r\n]{60}",
    ),
    Form("PuTTY private key", r"PuTTY-User-Key-File-[23]: "),
    Form("OpenPGP private key", r"-----BEGIN PGP PRIVATE KEY BLOCK-----[\r\n]"),
    Form("AWS secret key", r"(?i)aws_secret_access_key[\"']?\s*[=:]\s*[\"']?[A-Za-z0-9/+]{40}(?:[^A-Za-z0-9/+]|$)"),
    Form("AWS key id", r"\b(?:AKIA|ASIA)[A-Z2-7]{16}\b"),
    Form("GitHub token", r"\b(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9]{22}_[A-Za-z0-9]{59})\b"),
    Form("GitLab token", r"\bglpat-[A-Za-z0-9_-]{20,}"),
    Form("Slack token", r"\bxox[abposr]-[A-Za-z0-9]{8,}-[A-Za-z0-9-]{12,}"),
    Form("Anthropic key", r"\bsk-ant-[a-z0-9]{2,8}-[A-Za-z0-9_-]{40,}"),
    Form("OpenAI key", r"\bsk-(?:proj|svcacct|admin)-[A-Za-z0-9_-]{40,}|\bsk-[A-Za-z0-9]{20}T3BlbkFJ[A-Za-z0-9]{20}\b"),
    Form("Google API key", r"\bAIza[A-Za-z0-9_-]{35}\b"),
    Form("Google service account", r'"private_key_id"\s*:\s*"[0-9a-f]{40}"'),
    Form("Google refresh token", r"\b1//0[A-Za-z0-9_-]{60,}"),
    Form("Hugging Face token", r"\bhf_[A-Za-z0-9]{34}\b"),
    Form("npm token", r"\bnpm_[A-Za-z0-9]{36}\b"),
    Form("package index token", r"\bpypi-AgEI[A-Za-z0-9_-]{50,}"),
    Form("Stripe key", r"\b[sr]k_live_[A-Za-z0-9]{20,}"),
    Form("SendGrid key", r"\bSG\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}\b"),
    Form("DigitalOcean token", r"\bdo[opr]_v1_[0-9a-f]{64}\b"),
    Form("Vault token", r"\bhvs\.[A-Za-z0-9_-]{90,}"),
    Form("age secret key", r"\bAGE-SECRET-KEY-1[0-9A-Z]{58}\b"),
)
"""What a secret looks like wherever it stands."""

KEYS: Final = frozenset({"private key", "OpenPGP private key", "PuTTY private key"})
"""The forms that a compiled program may hold."""

ENVIRONMENT: Final = (
    r"(?i)(?:^|_)(?:TOKEN|SECRET|PASSWORD|PASSWD|APIKEY|API_KEY|ACCESS_KEY|SECRET_KEY|PRIVATE_KEY|CREDENTIALS)$"
)
"""The name of a variable of an image's configuration whose value is taken for a credential."""
