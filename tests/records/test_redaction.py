"""What records and cards leave out of commands and texts, and what they show, though its name holds `token` or
`key`."""

import json
import re
from pathlib import Path

import pytest

from reluformer.configuration.errors import UserError
from reluformer.configuration.recipe_parser import load_recipe
from reluformer.records.records import run_record
from reluformer.records.redaction import last_part, public_text, public_values, without_secrets

ROOT = Path(__file__).parents[2]
OF_HUBS = ("api_org", "github_pat", "gho", "ghp", "ghs", "ghu", "ghr")


@pytest.mark.parametrize(
    ("given", "recorded", "published"),
    [
        ("x --config runs/a.yaml --name 'a b'", None, None),
        ("x --batching.tokens_per_batch 512 --key_heads 4 --pad_token '<pad>'", None, None),
        ("x --x=/home/me/y --z /home/me/w.yaml", None, "x --x=…/y --z …/w.yaml"),
        ("x --x ../other/y --z '~/w'", None, "x --x …/y --z '…/w'"),
        (r"x --x 'C:\Users\me\y'", None, "x --x '…/y'"),
        ("x --run /home/me", None, "x --run …"),
        ("x --x file:///home/me/y.gz", None, "x --x …/y.gz"),
        ("x --x a=/home/me/y,b=3", None, "x --x a=…/y,b=3"),
        ("x --training.hub_token geheim --y 1", "x --training.hub_token … --y 1", None),
        ("HF_TOKEN=geheim x --training.hub_token=geheim", "HF_TOKEN=… x --training.hub_token=…", None),
        ("x --api-key 1234 --myPassword a", "x --api-key … --myPassword …", None),
        ("x hf_abcdefghijklm", "x …", None),
        (" ".join(f"{start}_abcdefghijklm" for start in OF_HUBS), " ".join("…" for _ in OF_HUBS), None),
        ("x --a.token 'ge!, heim' --y 1", "x --a.token '…' --y 1", None),
        ("x s3://key:se/cr@et@bucket/y", "x s3://…@bucket/y", None),
        ("x 'https://host/y?sig=geheim&a=1'", "x 'https://host/y?…'", None),
        ("""x '{"hub_token": "S", "n": 1}'""", """x '{"hub_token": "…", "n": 1}'""", None),
        ("see /home/alice/notes.txt, and a/b", None, "see …/notes.txt, and a/b"),
        ("x --x '/home/anna/Kunde Meier/t.de' '--y=/a b/c/d e'", None, "x --x '…/t.de' '--y=…/d e'"),
        ("/home/anna/Kunde Meier GmbH/train.de", None, "…/train.de"),
        (r"C:\Users\Jörg Müller\geheim\a.de", None, "…/a.de"),
        ("1/(γ√(n/2)) </s> 50/60 BLEU|nrefs:1|tok:13a and / or", None, None),
        ("the keys: values; BPE tokens: 4000, a sort key: the name, pad_token: <pad>", None, None),
    ],
)  # fmt: skip
def test_a_command_or_text(given, recorded, published):
    """None: as it is, or as it is recorded."""
    recorded = given if recorded is None else recorded
    assert without_secrets(given) == run_record(given, None, None)["command"] == recorded
    assert public_text(given) == public_text(recorded) == (recorded if published is None else published)


def test_the_last_part_of_a_path():
    assert [last_part(path) for path in ("/a/b.de", "s3://k:s@bucket", "/home/alice")] == ["b.de", "…@bucket", "…"]


def test_nothing_that_is_committed_looks_like_a_secret():
    for path in ROOT.glob("configuration/recipes/*.yaml"):
        text = path.read_text(encoding="utf-8")
        assert without_secrets(text) == text
    for path in ROOT.glob("benchmarks/results/*.json"):
        for command in re.findall(r'"command": (".*?[^\\]")', path.read_text(encoding="utf-8")):
            assert without_secrets(json.loads(command)) == json.loads(command)


def test_a_token_in_a_recipe_is_refused_unless_transformers_has_hidden_it(tmp_path):
    recipe = tmp_path / "a.yaml"
    recipe.write_text(
        "name: a\ndata: {source_language: de, target_language: en, demo: {}}\ntraining: {hub_token: TOKEN}\n"
    )
    with pytest.raises(UserError, match=r"training\.hub_token: would stand in the files of the run; set HF_TOKEN"):
        load_recipe(recipe)
    recipe.write_text(recipe.read_text().replace("TOKEN", "<HUB_TOKEN>"))
    load_recipe(recipe)


def test_the_recipe_of_a_result_holds_no_secret():
    recipe = {"dataset": {"path": "s3://key:geheim@bucket/a", "token": "geheim", "pad_token": "<pad>"}, "splits": []}
    recipe["dataset"]["use_auth_token"] = True  # which says that there is one, and not which
    public = {"path": "s3://…@bucket/a", "token": "…", "pad_token": "<pad>", "use_auth_token": True}
    assert public_values(recipe, without_secrets) == {"dataset": public, "splits": []}
