"""What `save_pretrained` writes loads with `trust_remote_code=True` where the package does not exist, or is of a later
day."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

from reluformer import ReLUFormerForConditionalGeneration, ReLUFormerModel, modeling_reluformer

from ..conftest import random_tokens, tiny_config, tiny_model
from .cases import decoder_model, run_without_package, vision_model

PACKAGE = Path(modeling_reluformer.__file__).parent
DOOR = {"__init__.py", "registration.py"}
KINDS = (ReLUFormerModel, ReLUFormerForConditionalGeneration)
COMMIT = "0123456789abcdef0123456789abcdef01234567"
LOAD = """
    import torch
    from transformers import AttentionInterface, AutoConfig, AutoModel, AutoModelForSeq2SeqLM

    name, source = sys.argv[1], torch.tensor(json.loads(sys.argv[2]))
    config = AutoConfig.from_pretrained(name, trust_remote_code=True)
    base = AutoModel.from_pretrained(name, trust_remote_code=True)
    model = AutoModelForSeq2SeqLM.from_pretrained(name, trust_remote_code=True)
    torch.testing.assert_close(base(input_ids=source, decoder_input_ids=source).last_hidden_state,
                               model.model(input_ids=source, decoder_input_ids=source).last_hidden_state)
    assert model.config._attn_implementation == "eager", "fused is the package's"
    print(json.dumps({
        "config": type(config).__name__,
        "classes": [type(base).__name__, type(model).__name__],
        "remote": all(type(thing).__module__.startswith("transformers_modules.") for thing in (config, base, model)),
        "global": sorted(set(AttentionInterface._global_mapping) & {"eager", "fused", "reluformer"}),
        "tokens": model.generate(source, num_beams=3, max_new_tokens=8).tolist(),
    }))
"""

# What a copy of the code did not have before the ends of segments were computed once for all layers.
LATER = {
    "attention_reluformer.py": "    cu_seqlens: tuple[Tensor, Tensor] | None = None\n",
    "layers_reluformer.py": """    if config._attn_implementation == "fused" and visibility.query_segments is not None:
        visibility = replace(visibility, cu_seqlens=visibility.segment_ends())
""",
}
OLDER = """
import sys
import torch
from transformers import AutoModelForSeq2SeqLM

model = AutoModelForSeq2SeqLM.from_pretrained(sys.argv[1], trust_remote_code=True).eval()
assert type(model).__module__.startswith("transformers_modules.") and model.config._attn_implementation == "fused"
ids, segments = torch.arange(5, 11).repeat(2, 1), torch.tensor([[1, 1, 2, 2, 2, 0]] * 2)
for packed in ({}, {"segment_ids": segments, "decoder_segment_ids": segments}):
    logits = []
    for implementation in ("fused", "eager"):
        model.set_attn_implementation(implementation)
        logits.append(model(input_ids=ids, decoder_input_ids=ids, **packed).logits[:, :5])
    torch.testing.assert_close(*logits, atol=1e-4, rtol=1e-4)
"""


def test_an_older_copy_of_the_code_takes_the_fused_path_of_this_package(tmp_path):
    folder = tmp_path / "older"
    tiny_model().save_pretrained(folder)
    for name, later in LATER.items():
        text = (folder / name).read_text(encoding="utf-8")
        assert text.count(later) == 1
        (folder / name).write_text(text.replace(later, ""), encoding="utf-8")
    where = {"cwd": PACKAGE.parent, "env": {**os.environ, "HF_MODULES_CACHE": str(tmp_path / "modules")}}
    subprocess.run([sys.executable, "-c", OLDER, folder], check=True, **where)


def test_from_an_offline_hub_cache(tmp_path):
    repository, source = tmp_path / "hub" / "models--someone--tiny", random_tokens(2, 7)
    tiny_model().save_pretrained(repository / "snapshots" / COMMIT)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    where = {"folder": tmp_path, "HF_HUB_CACHE": str(tmp_path / "hub")}
    loaded = run_without_package(LOAD, "someone/tiny", json.dumps(source.tolist()), **where)
    assert loaded["classes"] == ["ReLUFormerModel", "ReLUFormerForConditionalGeneration"]
    assert loaded["config"] == "ReLUFormerConfig" and loaded["remote"]
    assert loaded["global"] == [], "the global attention registry got a generic name"
    assert loaded["tokens"] == tiny_model().generate(source, num_beams=3, max_new_tokens=8).tolist()


def test_the_flat_files_of_the_model_are_what_all_kinds_of_models_carry_together(tmp_path):
    """What a Hub copy cannot run stands in folders of its own; the door of the package, and what no model uses, stay at
    home."""
    carried = set()
    models = [*(kind(tiny_config()) for kind in KINDS), vision_model(), vision_model().model, decoder_model()]
    for model in models:
        model.save_pretrained(tmp_path / type(model).__name__)
        kind = type(model)
        carried |= {path.name for path in (tmp_path / kind.__name__).glob("*.py")}
    assert carried == {path.name for path in PACKAGE.glob("*.py")} - DOOR


def test_what_is_carried_imports_its_neighbours_and_nothing_else_of_the_package():
    flat = {path.stem: path for path in PACKAGE.glob("*.py") if path.name not in DOOR}
    for path in flat.values():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level:
                assert node.level == 1 and node.module in flat, f"{path.name}: {ast.unparse(node)}"
            elif isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module]
                own = [name for name in names if name.partition(".")[0] == "reluformer"]
                assert all(name.startswith("reluformer.modeling_reluformer.fused") for name in own), (
                    f"{path.name}: {own}"
                )
