"""What records and cards must not tell: secrets in commands and recipes, and paths of this machine.

A record keeps the paths, which the run may need, and loses the secrets; what is published loses both.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

HIDDEN = "…"  # stands where something was left out
_SECRET_NAME = r"[\w.-]*(?:(?:hub|auth|access|api|hf|secret)[_-]?(?:token|key)|(?<![\w-])token|password|secret)"
_GIVEN = rf"(?i)(--{_SECRET_NAME}\s+|\b{_SECRET_NAME}[\"']?\s*[=:]\s*)"
_SECRETS = (
    # tokens of the Hub and of GitHub
    (re.compile(r"\b(?:hf_|api_org_|github_pat_|gh[opsur]_)\w{8,}"), HIDDEN),
    # the user part, up to the last @, as a password may hold / and @; and the query of a URL
    (re.compile(r"([A-Za-z][\w+.-]*://)\S*@"), rf"\1{HIDDEN}@"),
    (re.compile(r"([A-Za-z][\w+.-]*://[^\s?]*\?)[^\s\"']+"), rf"\1{HIDDEN}"),
    # `--hub_token S`, `api_key=S`, `"hub_token": "S"`
    (re.compile(_GIVEN + r"""(?:(["'])(?:(?!\2).)*\2|["']?[^\s"',;}]+)"""), rf"\1\2{HIDDEN}\2"),
)
_END = r"[^\s\"'`,;|()<>\[\]{}]"  # what a path in a text does not end with
_START = rf"(?:(?:file://|~[\w.-]*|(?:\.\./)*\.\.)?/[\w.{HIDDEN}]|[A-Za-z]:[\\/](?={_END}))"
_PATH = re.compile(rf"(?<![\w.~/\\<>{HIDDEN}-]){_START}{_END}*")
# Those that may hold spaces: a whole value, and one within quotes, perhaps the value of an option.
_WHOLE_PATH = re.compile(rf"{_START}[^:;\n]*")
_QUOTED_PATH = re.compile(
    rf"""(?P<quote>["'])(?P<option>(?:--?[\w.-]+=)?)(?P<path>{_START}(?:(?!(?P=quote)).)*)(?P=quote)"""
)


def without_secrets(text: str) -> str:
    """A text without tokens, the user part and the query of any URL, and the values in `hub_token=…` and the like."""
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text


def public_text(text: str) -> str:
    """A text or command without secrets, and without the folders of paths that are absolute or lead out of the current
    one."""

    def hidden(path: str) -> str:
        name = last_part(path)
        return name if name == HIDDEN else f"{HIDDEN}/{name}"

    def quoted(match: re.Match) -> str:
        return f"{match['quote']}{match['option']}{hidden(match['path'])}{match['quote']}"

    text = without_secrets(text)
    if _WHOLE_PATH.fullmatch(text):
        return hidden(text)
    return _PATH.sub(lambda match: hidden(match[0]), _QUOTED_PATH.sub(quoted, text))


def last_part(path: str) -> str:
    """The name at the end of a path or URL, without secrets; of a person's home folder, …"""
    parts = [part for part in re.split(r"[/\\]", without_secrets(path)) if part not in ("", ".", "..", "~")]
    if not parts or (len(parts) > 1 and parts[-2] in ("home", "Users")):
        return HIDDEN
    return parts[-1]


def public_values(value: Any, redacted: Callable[[str], str] = public_text) -> Any:
    """Nested mappings and sequences with every text redacted, and without those that a key calls secret."""
    if isinstance(value, dict):
        secret = [name for name in value if re.fullmatch(f"(?i){_SECRET_NAME}", str(name))]
        hidden = {name: HIDDEN for name in secret if value[name] and value[name] is not True}
        return {name: public_values(inner, redacted) for name, inner in value.items()} | hidden
    if isinstance(value, (list, tuple)):
        return type(value)(public_values(inner, redacted) for inner in value)
    return redacted(value) if isinstance(value, str) else value
