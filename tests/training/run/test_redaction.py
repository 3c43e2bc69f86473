"""What records and cards leave out of commands and texts, and what they show, though its name holds `token` or `key`."""

import dataclasses
import json
import re
from pathlib import Path

import pytest
import yaml

from benchmarks.studies.collection import collect
from reluformer import ReLUFormerConfig
from reluformer.configuration.errors import UserError
from reluformer.configuration.recipe_parser import load_recipe, recipe_parser
from reluformer.training.run.records import run_record
from reluformer.training.run.redaction import (
    command_without_secrets,
    is_secret,
    last_part,
    public_command,
    public_text,
    public_values,
    without_secrets,
)

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("command", "recorded", "published"),
    [
        ("x --config runs/a.yaml --name b", None, None),
        ("x --name 'a b'", None, None),
        ("x --batching.tokens_per_batch 512 --key_heads 4 --pad_token '<pad>'", None, None),
        ("x --x=/home/me/y --z /home/me/w.yaml", None, "x --x=…/y --z …/w.yaml"),
        ("x --x ../other/y --z '~/w'", None, "x --x …/y --z …/w"),
        (r"x --x 'C:\Users\me\y'", None, "x --x …/y"),
        ("x --run /home/me", None, "x --run …"),
        ("x --x file:///home/me/y.gz", None, "x --x file://…/y.gz"),
        ("x --x zip://a::file:///home/me/y", None, "x --x zip://a::file://…/y"),
        ("x --x a=/home/me/y,b=3", None, "x --x a=…/y,b=3"),
        ("x --training.hub_token api_org_abcdefgh --y 1", "x --training.hub_token … --y 1", None),
        ("x --training.hub_token=geheim", "x --training.hub_token=…", None),
        ("x --api-key 1234 --myPassword a", "x --api-key … --myPassword …", None),
        ("HF_TOKEN=geheim x", "HF_TOKEN=… x", None),
        ("x --training.optim_args a=1,auth_token=geheim", "x --training.optim_args a=1,auth_token=…", None),
        ("x hf_abcdefghijklm", "x …", None),
        ("x s3://key:se/cr@et@bucket/y", "x s3://…@bucket/y", None),
        ("x 'https://host/y?sig=geheim&a=1'", "x 'https://host/y?…'", None),
        (
            """x --j '{"path": "/home/me/y", "token": "geheim", "n": 1}'""",
            """x --j '{"path": "/home/me/y", "token": "…", "n": 1}'""",
            """x --j '{"path": "…/y", "token": "…", "n": 1}'""",
        ),
        ("x --api_key abc123= --b c=d", "x --api_key … --b c=d", None),
        ("x --hub_token c2VjcmV0==", "x --hub_token …", None),
        ("x --training 'hub_token: S'", "x --training 'hub_token: …'", None),
        ("""x --training ' {"hub_token": "S"}'""", """x --training ' {"hub_token": "…"}'""", None),
        ("x -H 'X-API-Key: S'", "x -H 'X-API-Key: …'", None),
        ("x -H 'Authorization: Basic S'", "x -H 'Authorization: …'", None),
        ("x -H 'Accept: Bearer S'", "x -H 'Accept: Bearer …'", None),
        ("""x --n 'see {"token": "S"} there'""", """x --n 'see {"token": "…"} there'""", None),
        ("x auth=S pass=S --pass 1", "x auth=… pass=… --pass …", None),
        ("x --o 'a=1 and pass=S'", "x --o 'a=1 and pass=…'", None),
        ("x alice@host:/data/x a@b.org", None, "x …@host:…/x a@b.org"),
        ("x glpat-abcdEFGH12345678abcd xoxb-123456789012-abcdEFGH eyJhbGciOiJ9.eyJzdWIiOiJ9.c2ln-_c", "x … … …", None),
        ("x sk-abcdEFGH12345678abcd sk-learn-and-its-other-parts", "x … sk-learn-and-its-other-parts", None),
        (
            """x --j '[["/home/me/y", {"token": "S"}]]'""",
            """x --j '[["/home/me/y", {"token": "…"}]]'""",
            """x --j '[["…/y", {"token": "…"}]]'""",
        ),
        ("x 'open", "…", None),
    ],
)
def test_a_command(command, recorded, published):
    """None: as it is, or as it is recorded."""
    recorded = command if recorded is None else recorded
    assert command_without_secrets(command) == recorded
    assert run_record(command, None, None)["command"] == recorded
    assert public_command(command) == public_command(recorded) == (recorded if published is None else published)


# Of this program and of Transformers: each holds one of the words, and none is a secret.
NO_SECRETS = [
    *("batching.tokens_per_batch", "evaluation.batch_tokens", "training.average_tokens_across_devices", "pad_token_id"),
    *("decoder_start_token_id", "pad_token", "max_source_tokens", "key_padding_mask", "second_passes", "tokenizer"),
]
SECRETS = ["token", "hub_token", "AWS_SECRET_ACCESS_KEY", "apiKey", "db-password", "myPasswords", "Authorization"]


@pytest.mark.parametrize("name", [*NO_SECRETS, *SECRETS])
def test_a_name_says_whether_its_value_is_a_secret(name):
    assert is_secret(name) == (name in SECRETS)


def test_of_all_options_one_is_a_secret():
    options = [name for action in recipe_parser()._actions for name in action.option_strings]
    options += [field.name for field in dataclasses.fields(ReLUFormerConfig)]
    assert {name for name in options if is_secret(name)} == {"--training.hub_token"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("see /home/alice/notes.txt, and a/b", "see …/notes.txt, and a/b"),
        ("1/(γ√(n/2)) </s> 50/60 BLEU|nrefs:1|tok:13a and / or", None),
        ("train (news, /data/x)", "train (news, …/x)"),
        (r"on D:\texts\x too", "on …/x too"),
        ("/Users/alice", "…"),
        ("password='a b', hub_token: S", "password='…', hub_token: …"),
        ("the keys: values; BPE tokens: 4000, a forward pass: 3 ms, a sort key: the name, pad_token: <pad>", None),
        ("tokens: of the text", None),
    ],
)
def test_a_text(text, expected):
    assert public_text(text) == (text if expected is None else expected)


def test_the_last_part_of_a_path():
    assert [last_part(path) for path in ("/a/b.de", "s3://k:s@bucket", "/home/alice", "~")] == [
        "b.de",
        "…@bucket",
        "…",
        "…",
    ]


@pytest.mark.parametrize("path", sorted(ROOT.glob("configuration/recipes/*.yaml")), ids=lambda path: path.stem)
def test_no_recipe_of_ours_holds_what_looks_like_a_secret(path):
    text = path.read_text(encoding="utf-8")
    assert without_secrets(text) == text and public_values(yaml.safe_load(text), without_secrets) == yaml.safe_load(
        text
    )


@pytest.mark.parametrize("path", sorted(ROOT.glob("benchmarks/results/*.json")), ids=lambda path: path.stem)
def test_no_command_of_a_result_of_ours_holds_what_looks_like_a_secret(path):
    for command in re.findall(r'"command": (".*?[^\\]")', path.read_text(encoding="utf-8")):
        assert command_without_secrets(json.loads(command)) == json.loads(command)


def test_a_token_in_a_recipe_is_refused_unless_transformers_has_hidden_it(tmp_path):
    recipe = tmp_path / "a.yaml"
    recipe.write_text(
        "name: a\ndata: {source_language: de, target_language: en, demo: {}}\ntraining: {hub_token: TOKEN}\n"
    )
    with pytest.raises(UserError, match=r"training\.hub_token: would stand in the files of the run"):
        load_recipe(recipe)
    recipe.write_text(recipe.read_text().replace("TOKEN", "<HUB_TOKEN>"))
    load_recipe(recipe)


def test_a_result_that_is_collected_holds_no_secret_of_its_recipe(tmp_path):
    (tmp_path / "recipe.yaml").write_text(
        "data: {dataset: {path: 's3://key:geheim@bucket/a'}}\nevaluation: {splits: []}\n"
    )
    (tmp_path / "training_record.json").write_text("{}")
    (tmp_path / "trainer_state.json").write_text('{"log_history": []}')
    assert collect(tmp_path)["recipe"]["data"]["dataset"]["path"] == "s3://…@bucket/a"
