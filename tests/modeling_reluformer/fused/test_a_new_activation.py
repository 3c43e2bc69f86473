"""What CONTRIBUTING says of a new point-wise activation: two files, and it is computed, in a copy of the package."""

import os
import shutil
import subprocess
import sys
import textwrap

from ...docs.pages import ROOT

FORMULA = (
    """
    "sigmoid": torch.sigmoid,
}""",
    """
    "sigmoid": torch.sigmoid,
    "squared_gelu": lambda scores: nn.functional.gelu(scores).square(),
}""",
)
ROW = (
    """
    "softmax": Activation(""",
    """
    "squared_gelu": Activation(
        "GELU²",
        r"\\mathrm{GELU}(x_{ij})^2",
        lambda g, x, u: _aten.gelu_backward(2 * g * nn.functional.gelu(x), x),
        closed_at_zero=True,
    ),
    "softmax": Activation(""",
)
PROGRAM = """
    import torch
    import reluformer
    from reluformer import ReLUFormerConfig, ReLUFormerForConditionalGeneration, relu_attention
    from reluformer.modeling_reluformer.attention_reluformer import reference_attention
    from reluformer.modeling_reluformer.fused import attention

    print(reluformer.__file__)
    attention._is_small = lambda *call: False
    tensors = [torch.randn(2, 3, 40, 8, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    for dtype in (torch.float64, torch.float32):
        leaves = [tensor.detach().to(dtype).requires_grad_() for tensor in tensors]
        found = relu_attention(*leaves, scaling="none", activation="squared_gelu", statistics="sum")
        wanted = reference_attention(*tensors, activation="squared_gelu", statistics="sum")
        torch.testing.assert_close(found[0].double(), wanted.output, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(found[1].double(), wanted.row_sum, rtol=1e-4, atol=1e-4)
        gradients = torch.autograd.grad(found[0].sum() + found[1].square().sum(), leaves)
        expected = torch.autograd.grad(wanted.output.sum() + wanted.row_sum.square().sum(), tensors)
        for one, other in zip(gradients, expected, strict=True):
            torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)
    sizes = {"vocab_size": 11, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16}
    sizes |= {"decoder_ffn_dim": 16, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    config = ReLUFormerConfig(**sizes, attention_activation="squared_gelu")
    model, ids = ReLUFormerForConditionalGeneration(config).eval(), torch.tensor([[3, 4, 5]])
    logits = model(input_ids=ids, decoder_input_ids=ids).logits
    model.set_attn_implementation("eager")
    torch.testing.assert_close(logits, model(input_ids=ids, decoder_input_ids=ids).logits)
"""


def replaced(path, change):
    text = path.read_text(encoding="utf-8")
    assert text.count(change[0]) == 1, path
    path.write_text(text.replace(*change), encoding="utf-8")


def test_two_files_add_a_point_wise_activation(tmp_path):
    links = [path for path in (ROOT / "reluformer").iterdir() if path.is_symlink() and path.name != "models"]
    leave = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.copytree(ROOT / "reluformer", tmp_path / "reluformer", symlinks=True, ignore=leave)
    for link in links:
        shutil.copytree(link.resolve(), tmp_path / link.name, ignore=leave)
    replaced(tmp_path / "modeling_reluformer/attention_reluformer.py", FORMULA)
    replaced(tmp_path / "modeling_reluformer/fused/activations.py", ROW)
    replaced(
        tmp_path / "modeling_reluformer/fused/activations.py",
        ("from torch import Tensor", "from torch import Tensor, nn"),
    )
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout.startswith(str(tmp_path))
