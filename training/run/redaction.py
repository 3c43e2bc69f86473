"""What records and cards must not tell: secrets by the meaning of their names and by their form, and paths of this machine.

A record keeps the paths, which the run may need, and loses the secrets; what is published loses both.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from typing import Any

import yaml

HIDDEN = "…"  # stands where something was left out
# Parts of names. Whatever else the name says, these are secrets.
_SECRETS = (
    "password",
    "passwords",
    "passwd",
    "passphrase",
    "secret",
    "secrets",
    "credential",
    "credentials",
    "authorization",
)
# Whole words of names that say so too, unless the name has other words and the value is plain (`second_pass: 3`), or
# it is the pass of a network that is meant.
_SHORT_SECRETS = {"auth", "pass"}
_OF_A_NETWORK = re.compile("forward|backward")
# Secrets too, unless the name or the value says that they are pieces of text, counts of them, or keys of the attention.
_KEYS = ("token", "key", "tokens", "keys")
_OF_A_TEXT = {"pad", "padding", "bos", "eos", "unk", "cls", "sep", "mask", "num"}
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_PLAIN_VALUE = re.compile(r"(?i)[-+]?[\d_]*\.?\d+(e[-+]?\d+)?|true|false|null|none")

_TOKEN = re.compile(
    r"\b(?:hf_|api_org_|github_pat_|gh[opsur]_)\w{8,}|(?<![\w-])sk-(?=[\w-]*\d)[\w-]{16,}|\bAKIA[0-9A-Z]{16}\b|(?<=\bBearer )\S+"
    r"|\b(?:glpat|xox[a-z]|xapp)-[\w.-]{8,}|\beyJ[\w-]+\.eyJ[\w-]+\.[\w-]*"  # GitLab, Slack, JSON web tokens
)
_USER_OF_URL = re.compile(r"([A-Za-z][\w+.-]*://)\S*@")  # to the last @: a password may hold / and @
_QUERY_OF_URL = re.compile(r"([A-Za-z][\w+.-]*://[^\s?]*\?)[^\s\"']+")
_USER_OF_SCP = re.compile(r"(?<![\w./-])[\w.-]+:(?!//)\S*@(?=(?!sha\d)[\w.-]+:)")  # `user:password@host:path`
_USER_OF_HOST = re.compile(r"(?<![\w.+-])[\w.+-]+@(?=[\w.-]+:[~/])")  # `user@host:/path`
_USER_OF_CURL = re.compile(r"(?<!\S)(-u\s*|--user[\s=]+)[^\s:]+:\S+")
# `name=value`, `name: value` and `"name": "value"`, with what tells a field from a word of a sentence.
_FIELD = re.compile(
    r"""(?m)(?P<first>^[\s{\[-]*|[{,;]\s*)?(?<![\w.-])(?P<quote>["']?)(?P<name>[\w.-]+)(?P=quote)"""
    r"""(?P<sign>=|\s*(?::(?!//)|=)\s*)(?P<scheme>(?i:(?:basic|bearer|digest|token)\s+)?)"""
    r"""(?P<value>"(?:[^"\\]|\\.)*"|'[^']*'|[^\s&;,"']+?(?=[}\])]*(?:[\s&;,"']|$)))"""
)

_END = r"[^\s\"'`,;|()<>\[\]{}]"  # what a path in a text does not end with
_LOCAL_URL = re.compile(rf"(?i)\b(file:/+|[a-z][\w+.-]*:///+)({_END}+)")
_PATH = re.compile(
    rf"(?<![\w.~/\\<>{HIDDEN}-])(?:(?:~[\w.-]*)?/[\w.{HIDDEN}]{_END}*|[A-Za-z]:[\\/]{_END}+|\\\\\w{_END}+)"
)
# A whole value that is one, blanks included.
_IS_LOCAL = re.compile(r"(?i)(file:/+|[a-z][\w+.-]*:///+)|(?=[/\\]|[a-z]:[/\\]|~[\w.-]*(?:[/\\]|$))")


def is_secret(name: str, value: Any = None) -> bool:
    """Whether the value of an option or a field of this name is a secret.

    A name that holds `password`, `secret` or `credential` says so, and so does the word `auth` or `pass` in it, unless a number
    or a truth value follows other words, or it is a forward pass, and so does one that holds `token` or `key`, except:
    the special tokens of a vocabulary (`pad_token`), the padding mask of the keys, and a number, a truth value or null in an
    option whose last word is another (`tokens_per_batch`, `key_heads`) or plural (`max_source_tokens`). So is `user:password`
    after `-u` or `--user`.
    """
    words = [word.lower() for word in _WORDS.findall(name)]
    if any(word.endswith(_SECRETS) for word in words) or _USER_OF_CURL.fullmatch(f"{name} {value}"):
        return True
    if _SHORT_SECRETS.intersection(words):
        is_plain = len(words) > 1 and _PLAIN_VALUE.fullmatch(str(value))
        return not (is_plain or _OF_A_NETWORK.search(f"{name} {value}"))
    if not any(word.endswith(_KEYS) for word in words) or _OF_A_TEXT.intersection(words):
        return False
    return words[-1].endswith(("token", "key")) or not _PLAIN_VALUE.fullmatch(str(value))


def without_secrets(text: str) -> str:
    """A text without the user part and the query of any URL, without tokens of known form, and without the values
    in `token=…`, `hub_token: …` and `"token": "…"`."""
    text = _QUERY_OF_URL.sub(rf"\1{HIDDEN}", _USER_OF_URL.sub(rf"\1{HIDDEN}@", text))
    text = _FIELD.sub(_without_value, _USER_OF_SCP.sub(f"{HIDDEN}@", text))
    return _TOKEN.sub(HIDDEN, _USER_OF_CURL.sub(rf"\1{HIDDEN}", text))


def _without_value(field: re.Match[str]) -> str:
    """The field, with … for the value of a secret. In a sentence a single word or a plural before a colon is none."""
    name, held = field["name"], field["value"]
    mark = held[0] if held[0] in "\"'" else ""
    words = [word.lower() for word in _WORDS.findall(name)]
    is_field = field["sign"] == "=" or field["quote"]
    is_field = is_field or (
        (field["first"] is not None or len(words) > 1) and not {"tokens", "keys"}.intersection(words)
    )
    if not is_field or not is_secret(name, held.strip(mark) if mark else held):
        return field[0]
    return field[0].removesuffix(held) + mark + HIDDEN + mark


def public_text(text: str) -> str:
    """A text without secrets, and without the folders of absolute paths and of those that lead out of the current folder, or the
    names of users of other machines."""
    text = _USER_OF_HOST.sub(f"{HIDDEN}@", without_secrets(text))
    if found := _IS_LOCAL.match(text):
        return _public_path(found[1], text[found.end() :])
    if ".." in re.split(r"[/\\]", text):
        return _public_path(None, text)
    text = _LOCAL_URL.sub(lambda found: _public_path(found[1], found[2]), text)
    return _PATH.sub(lambda found: _public_path(None, found[0]), text)


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
            name: HIDDEN if inner is not None and is_secret(str(name), inner) else public_values(inner, redacted)
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
        is_value = not word.startswith("--") and is_secret(option, word)  # of the option before, even if it holds a "="
        is_named = bool(equals) and not is_value and re.fullmatch(r"-{0,2}\w[\w.-]*", name) is not None
        if not is_named:
            name, value = ("", word) if word.startswith("--") else (option, word)
        public = _public_value(name, value, redacted)
        word = word if public == value else f"{name}={public}" if is_named else public
        shown.append(word if re.fullmatch(rf"[\w@%+=:,./{HIDDEN}-]+", word) and HIDDEN in word else shlex.quote(word))
        option = word if word.startswith("-") and not is_named and not is_value else ""
    return " ".join(shown)


def _public_value(name: str, value: str, redacted: Callable[[str], str]) -> str:
    if is_secret(name, value):
        return HIDDEN
    if not value.lstrip().startswith(("{", "[")):
        return redacted(value)
    try:
        held = yaml.safe_load(value)
    except yaml.YAMLError:  # nothing in it can be told apart
        return HIDDEN
    public = public_values(held, redacted)
    return value if public == held else json.dumps(public, ensure_ascii=False, default=str)


def _public_path(scheme: str | None, path: str) -> str:
    name = last_part(path)
    start = "" if scheme is None else f"{scheme.partition(':')[0]}://"
    return f"{start}{HIDDEN}" if name == HIDDEN else f"{start}{HIDDEN}/{name}"
