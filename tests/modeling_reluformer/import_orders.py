"""Runs in a process of its own: for each order of imports, a child that imports so and then uses all that is registered.

    python import_orders.py FOLDER NAME …

Prints NAME and `ok` or the traceback of each. torch is imported once, before the children are forked.
"""

import os
import pickle
import sys
import threading
import traceback
from collections.abc import Sequence
from pathlib import Path

ORDERS = {
    "ours first": "import reluformer; from transformers import AutoModelForSeq2SeqLM",
    "ours last": "from transformers import AutoModelForSeq2SeqLM; import reluformer",
    "threads": "import reluformer; from transformers import BertModel, GenerationMixin; work_in_threads(IN_THREADS)",
    "names in threads": "import reluformer; work_in_threads([f'from reluformer import {name}' for name in reluformer.__all__])",
    "ours, the module": "import transformers; from reluformer.modeling_reluformer.modeling_reluformer import ReLUFormerModel",
    "ours, the attention": "from reluformer import relu_attention; from transformers import AutoModel",
    "a half loaded registry": "import reluformer; from transformers.modeling_layers import GradientCheckpointingLayer",
    "a model": "import reluformer; from transformers import BertModel",
    "a model, then ours": "from transformers import BertModel; import reluformer",
    "the folder": "import reluformer; import transformers.models.auto",
    "one registry, then ours": "import transformers.models.auto.configuration_auto; import reluformer",
    "the masks, then ours": "import transformers.masking_utils; import reluformer",
    "the Trainer": "import reluformer; from transformers import Seq2SeqTrainer",
    "generation": "import reluformer; import transformers.generation",
    "twice": "import importlib, reluformer; importlib.reload(reluformer); import transformers",
    "pickles": "unpickle()",
    "the library again": (
        "import importlib, reluformer; from transformers.models.auto import modeling_auto; importlib.reload(modeling_auto)"
    ),
}
# What Transformers is made of is loaded before: its own modules cannot be imported by several threads at once.
IN_THREADS = (
    "from transformers import AutoConfig; AutoConfig.for_model('reluformer')",
    "from transformers import AutoModel; list(AutoModel._model_mapping._extra_content)",
    "import reluformer.modeling_reluformer.other_models.settings",
    "import reluformer.modeling_reluformer.modeling_reluformer",
    "import reluformer.modeling_reluformer.compiled.loop",
    "import reluformer.modeling_reluformer.attention_operator",
)
SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 20}


def work_in_threads(work: Sequence[str]) -> None:
    """All at once: a deadlock of import locks is an error of Python."""
    failures, together = [], threading.Barrier(len(work))

    def run(statements: str) -> None:
        together.wait()
        try:
            exec(statements, {})
        except BaseException:
            failures.append(traceback.format_exc())

    threads = [threading.Thread(target=run, args=(statements,)) for statements in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, "\n".join(failures)


def unpickle() -> None:
    """A configuration by its module, as pickle imports it, without a word of `import reluformer`."""
    found = pickle.loads(b"creluformer.modeling_reluformer.configuration_reluformer\nReLUFormerConfig\n.")
    assert found.__name__ == "ReLUFormerConfig"


def check(folder: Path) -> None:
    """Everything that is registered is found, and is of the package."""
    check_other_models(folder)
    check_auto_classes(folder)
    from reluformer import ReLUFormerConfig
    from reluformer.modeling_reluformer import attention_operator
    from reluformer.modeling_reluformer.compiled.loop import compiled_attention

    assert pickle.loads(pickle.dumps(ReLUFormerConfig)) is ReLUFormerConfig
    assert attention_operator._registered == [compiled_attention]


def check_other_models(folder: Path) -> None:
    """The name of the attention, its masks, and the name in what is saved."""
    import torch
    from transformers import AttentionInterface, AttentionMaskInterface, BertConfig, BertModel

    assert "reluformer" in AttentionInterface().valid_keys()
    assert "reluformer" in AttentionMaskInterface().valid_keys()
    config = BertConfig(**SIZES, attn_implementation="reluformer")
    model = BertModel(config).eval()
    states = model(torch.ones(1, 4, dtype=torch.long)).last_hidden_state
    model.save_pretrained(folder / "bert")
    again = BertModel.from_pretrained(folder / "bert").eval()
    assert again.config._attn_implementation == "reluformer"
    torch.testing.assert_close(again(torch.ones(1, 4, dtype=torch.long)).last_hidden_state, states)


def check_auto_classes(folder: Path) -> None:
    """The Auto classes build the model; what is saved holds its code."""
    from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    sizes = {"vocab_size": 20, "d_model": 8, "encoder_layers": 1, "decoder_layers": 1}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8}
    config = AutoConfig.for_model("reluformer", **sizes, **heads)
    assert type(config).__module__ == "reluformer.modeling_reluformer.configuration_reluformer"
    assert "reluformer" in CONFIG_MAPPING and "reluformer" in list(CONFIG_MAPPING)
    for auto, name in ((AutoModel, "ReLUFormerModel"), (AutoModelForSeq2SeqLM, "ReLUFormerForConditionalGeneration")):
        assert type(config) in auto._model_mapping
        model = auto.from_config(config)
        assert (type(model).__name__, type(model).__module__) == (
            name,
            "reluformer.modeling_reluformer.modeling_reluformer",
        )
        model.save_pretrained(folder / name)
        assert (folder / name / "modeling_reluformer.py").is_file() and not (folder / name / "registration.py").exists()
        assert type(auto.from_pretrained(folder / name)) is type(model)


def main() -> int:
    import torch  # noqa: F401

    loaded = {name.partition(".")[0] for name in sys.modules}
    assert not loaded & {"transformers", "reluformer"}
    folder, *names = sys.argv[1:]
    for name in names:
        print(name, end=": ", flush=True)
        child = os.fork()
        if child == 0:
            try:
                exec(ORDERS[name], globals())
                check(Path(folder) / name)
                print("ok", flush=True)
            except BaseException:
                print(traceback.format_exc(), flush=True)
            os._exit(0)
        os.waitpid(child, 0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
