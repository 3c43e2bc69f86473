"""What records and cards must not tell: secrets, by the names of their fields and by their form, and paths of this machine.

A record keeps the paths, which the run may need, and loses the secrets; what is published loses both.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from typing import Any

HIDDEN = "…"  # stands where something was left out
_SECRET_PART = re.compile(r"(?i)passw|passphrase|secret|credential|authorization")
_SECRET_END = ("token", "key", "auth", "pass")
_SPECIAL_TOKENS = {"pad", "bos", "eos", "unk", "cls", "sep", "mask"}
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")

_TOKEN = re.compile(
    r"\b(?:hf_|api_org_|github_pat_|gh[opsur]_)\w{8,}|(?<![\w-])sk-(?=[\w-]*\d)[\w-]{16,}|\bAKIA[0-9A-Z]{16}\b"
    r"|\b(?:glpat|xox[a-z])-[\w.-]{8,}|\beyJ[\w-]+\.eyJ[\w-]+\.[\w-]*|(?<=\bBearer )\S+"
)
_USER_OF_URL = re.compile(r"([A-Za-z][\w+.-]*://)\S*@")  # to the last @: a password may hold / and @
_QUERY_OF_URL = re.compile(r"([A-Za-z][\w+.-]*://[^\s?]*\?)[^\s\"']+")
_USER_OF_HOST = re.compile(r"(?<![\w.+-])[\w.+-]+@(?=[\w.-]+:[~/])")  # `user@host:/path`
# `name=value`, `name: value` and `"name": "value"`.
_FIELD = re.compile(
    r"""(?<![\w.-])(?P<quote>["']?)(?P<name>[\w.-]+)(?P=quote)(?P<sign>\s*(?:=|:(?!//))\s*)"""
    r"""(?P<value>"[^"]*"|'[^']*'|(?:(?i:basic|bearer)\s+)?[^\s,;&"'}\]]+)"""
)
_END = r"[^\s\"'`,;|()<>\[\]{}]"  # what a path in a text does not end with
_LOCAL_URL = re.compile(rf"(?i)\b(file:/+|[a-z][\w+.-]*:///+)({_END}+)")
_PATH = re.compile(rf"(?<![\w.~/\\<>{HIDDEN}-])(?:(?:~[\w.-]*)?/[\w.{HIDDEN}]{_END}*|[A-Za-z]:[\\/]{_END}+)")
_IS_PATH = re.compile(r"(?i)[/\\]|[a-z]:[/\\]|~[\w.-]*(?:[/\\]|$)")  # a whole value, blanks included


def is_secret(name: str) -> bool:
    """Whether the value of an option or a field of this name is a secret.

    A name that holds `password`, `secret` or `credential` says so, and one that ends in `token`, `key`, `auth` or `pass`, except
    for the special tokens of a vocabulary (`pad_token`).
    """
    words = [word.lower() for word in _WORDS.findall(name)]
    if _SECRET_PART.search(name):
        return True
    return bool(words) and words[-1].endswith(_SECRET_END) and not _SPECIAL_TOKENS.intersection(words)


def without_secrets(text: str) -> str:
    """A text without the user part and the query of any URL, without tokens of known form, and without the values
    in `token=…`, `hub_token: …` and `"token": "…"`."""
    text = _QUERY_OF_URL.sub(rf"\1{HIDDEN}", _USER_OF_URL.sub(rf"\1{HIDDEN}@", text))
    return _TOKEN.sub(HIDDEN, _FIELD.sub(_without_value, text))


def _without_value(field: re.Match[str]) -> str:
    name, value = field["name"], field["value"]
    # A single word before a colon is one of a sentence: `the key: values`.
    is_field = field["sign"] == "=" or field["quote"] or len(_WORDS.findall(name)) > 1 or _SECRET_PART.search(name)
    if not is_field or not is_secret(name):
        return field[0]
    mark = value[0] if value[0] in "\"'" else ""
    return field[0].removesuffix(value) + mark + HIDDEN + mark


def public_text(text: str) -> str:
    """A text without secrets, and without the folders of absolute paths and of those that lead out of the current folder, or the
    names of users of other machines."""
    text = _USER_OF_HOST.sub(f"{HIDDEN}@", without_secrets(text))
    if _IS_PATH.match(text) or ".." in re.split(r"[/\\]", text):
        return _public_path(text)
    text = _LOCAL_URL.sub(lambda found: f"{found[1].partition(':')[0]}://{_public_path(found[2])}", text)
    return _PATH.sub(lambda found: _public_path(found[0]), text)


def _public_path(path: str) -> str:
    name = last_part(path)
    return HIDDEN if name == HIDDEN else f"{HIDDEN}/{name}"


def last_part(path: str) -> str:
    """The name at the end of a path or URL, without secrets; of a person's home folder, …"""
    parts = [part for part in re.split(r"[/\\]", without_secrets(path)) if part not in ("", ".", "..", "~")]
    if not parts or (len(parts) > 1 and parts[-2] in ("home", "Users")):
        return HIDDEN
    return parts[-1]


def public_values(value: Any, redacted: Callable[[str], str] = public_text) -> Any:
    """Nested mappings and sequences with every text redacted, and with … for the value of a name that is a secret's."""
    if isinstance(value, dict):
        return {
            name: HIDDEN if isinstance(inner, str) and is_secret(str(name)) else public_values(inner, redacted)
            for name, inner in value.items()
        }
    if isinstance(value, (list, tuple)):
        return type(value)(public_values(inner, redacted) for inner in value)
    return redacted(value) if isinstance(value, str) else value


def command_without_secrets(command: str) -> str:
    """A command line in which … stands for secrets; otherwise as it is."""
    return _command(command, without_secrets)


def public_command(command: str) -> str:
    """A command line in which … stands for secrets, and for the folders of paths that are absolute or lead out of the current
    folder."""
    return _command(command, public_text)


def _command(command: str, redacted: Callable[[str], str]) -> str:
    try:
        words = shlex.split(command)
    except ValueError:  # an unclosed quote: no command of ours, and no words to look at
        return HIDDEN
    shown, option = [], ""
    for word in words:
        name, equals, value = word.partition("=")
        if is_secret(option) and not word.startswith("--"):
            public = HIDDEN
        elif equals and re.fullmatch(r"-{0,2}\w[\w.-]*", name):
            public = f"{name}={HIDDEN if is_secret(name) else redacted(value)}"
        else:
            public = redacted(word)
        option = word if word.startswith("-") and not equals else ""
        plain = re.fullmatch(rf"[\w@%+=:,./{HIDDEN}-]+", public) and HIDDEN in public
        shown.append(public if plain else shlex.quote(public))
    return " ".join(shown)
