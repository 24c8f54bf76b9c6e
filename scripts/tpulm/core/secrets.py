"""Find secrets, by the environment or their form, and remove them from logs, archives and pages."""

import base64
import json
import os
import re
from pathlib import Path
from typing import Any

NAMES = (
    "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "KAGGLE_KEY", "KAGGLE_API_TOKEN", "WANDB_API_KEY", "GITHUB_TOKEN",
    "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN",
)  # fmt: skip
# Forms of the values of environment variables with these ENDINGS: passwords, then keys and tokens.
PASSWORD = re.compile(r"(?![/.~])(?=.*[^A-Za-z])\S{8,}")
KEY = re.compile(r"(?![/.~])(?=.*[a-z])(?=.*[A-Z])(?=.*\d)[\w.+=/-]{16,}|[0-9a-f-]{32,}")
ENDINGS = ((("_SECRET", "_PASSWORD"), PASSWORD), (("_KEY", "_TOKEN"), KEY))
OF_CREDENTIALS = ("private_key", "private_key_id", "client_secret", "refresh_token")
SHORTEST = 8  # characters of a secret: shorter ones would blot out ordinary text
BLOT = "[secret]"


# Forms of secrets: keys, tokens of Hugging Face, GitHub, AWS and Google, and passwords in URLs.
PATTERNS = {
    "a private key": re.compile(rb"^-----BEGIN [A-Z ]*PRIVATE KEY-----", re.MULTILINE),
    "a token": re.compile(
        rb"\b(hf_[A-Za-z0-9]{34}|gh[pousr]_[A-Za-z0-9]{36}|github_pat_\w{60,}|AKIA[0-9A-Z]{16}|AIza[\w-]{35})\b"
    ),
    "a password in a URL": re.compile(rb"\bhttps?://[^\s/:@]+:[^\s/@]+@"),
}


def find_secret(content: bytes) -> tuple[str, int] | None:
    """Return the kind of a secret in a text, by its form or of the environment, and its start; None without any."""
    for what, pattern in PATTERNS.items():
        if match := pattern.search(content):
            return what, match.start()
    for secret in secrets():
        if secret.encode() in content:
            return "a secret of the environment", content.index(secret.encode())
    return None


def secrets() -> list[str]:
    """Return the secrets of this process' environment, the longest first."""
    texts = {os.environ.get(name, "") for name in NAMES}
    for endings, form in ENDINGS:
        texts |= {text for name, text in os.environ.items() if name.endswith(endings) and form.fullmatch(text)}
    user = os.environ.get("KAGGLE_USERNAME", "")
    texts |= {base64.b64encode(f"{user}:{value}".encode()).decode() for value in texts if value}
    texts |= credentials(os.environ.get("GOOGLE_APPLICATION_CREDENTIALS", ""))
    return sorted((text for text in texts if len(text) >= SHORTEST), key=len, reverse=True)


def credentials(path: str) -> set[str]:
    """Return the secret lines of a credentials file: all, or in JSON those of the keys OF_CREDENTIALS."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return set()
    try:
        values = json.loads(text)
        strings = [values[name] for name in OF_CREDENTIALS if isinstance(values.get(name), str)]
    except (ValueError, AttributeError):
        strings = [text]
    lines = {line.strip() for value in strings for line in value.splitlines()}
    return {line for line in lines if len(line) >= 2 * SHORTEST and "://" not in line}


def redacted(text: str) -> str:
    """Return `text` without the secrets of the environment."""
    return blotted(text, secrets())


def redacted_values(value: Any) -> Any:
    """Return a value of JSON without the secrets of the environment in its texts and keys.

    It must be called before the value is dumped, since JSON escapes quotes, backslashes and other characters.
    """

    def clean(part: Any) -> Any:
        if isinstance(part, dict):
            return {clean(key): clean(item) for key, item in part.items()}
        if isinstance(part, list):
            return [clean(item) for item in part]
        return blotted(part, secret_texts) if isinstance(part, str) else part

    secret_texts = secrets()
    return clean(value)


def blotted(text: str, secret_texts: list[str]) -> str:
    """Return `text` with each of `secret_texts` replaced by BLOT."""
    for secret in secret_texts:
        text = text.replace(secret, BLOT)
    return text


def redact_file(path: str) -> None:
    """Replace the secrets of the environment in a file."""
    content = Path(path).read_bytes()
    clean = content
    for secret in secrets():
        clean = clean.replace(secret.encode(), BLOT.encode())
    if clean != content:
        Path(path).write_bytes(clean)
