"""The library's own tests of its models, run on each of ours once for each kind of attention: `make test-peer`.

What is skipped is listed, with the reason: here by name, and in conftest.py where the library's test itself skips; a
skip for any other reason fails.
"""

from __future__ import annotations

import unittest
from typing import Any

import pytest
import torch

from reluformer import (
    ReLUFormerConfig,
    ReLUFormerDecoderConfig,
    ReLUFormerDecoderModel,
    ReLUFormerForCausalLM,
    ReLUFormerForConditionalGeneration,
    ReLUFormerForImageClassification,
    ReLUFormerModel,
    ReLUFormerVisionConfig,
    ReLUFormerVisionModel,
)
from reluformer.modeling_reluformer.configuration_decoder import PRESETS as DECODER_PRESETS
from reluformer.modeling_reluformer.configuration_reluformer import PRESETS

from .library_tests import NotDownloadableError, load_library_tests

try:
    LIBRARY = load_library_tests()
except NotDownloadableError as error:
    pytest.skip(str(error), allow_module_level=True)


class ModelTester:
    """A tiny model and its batch, by the attributes that the mixins look for; `fields` come from the test class."""

    config_class: type
    batch_size = 13
    seq_length = 7
    vocab_size = 99
    num_hidden_layers = 2
    num_attention_heads = 4
    is_training = True

    def __init__(self, parent: Any, **fields: Any) -> None:
        self.parent = parent
        self.fields = fields
        self.attn_implementation: str | None = None  # the attention's default

    def get_config(self) -> Any:
        config = self.config_class(**self.sizes(), **self.fields)
        config._attn_implementation = self.attn_implementation
        return config

    def token_ids(self) -> torch.Tensor:
        return torch.randint(4, self.vocab_size, (self.batch_size, self.seq_length))


class TranslationTester(ModelTester):
    config_class, causal_lm_class = ReLUFormerConfig, ReLUFormerForConditionalGeneration
    hidden_size = 16

    def sizes(self) -> dict[str, Any]:
        one = {"layers": self.num_hidden_layers, "attention_heads": self.num_attention_heads, "ffn_dim": 24}
        both = {f"{stack}_{name}": size for stack in ("encoder", "decoder") for name, size in one.items()}
        sizes = {"vocab_size": self.vocab_size, "d_model": self.hidden_size, "max_position_embeddings": 128}
        return {**sizes, **both, "label_smoothing": 0.0}  # the library compares the loss with plain cross-entropy

    def prepare_config_and_inputs_for_common(self) -> tuple[ReLUFormerConfig, dict[str, torch.Tensor]]:
        config, source, target = self.get_config(), self.token_ids(), self.token_ids()
        source[:, -1] = config.eos_token_id
        target[:, 0] = config.decoder_start_token_id
        masks = {"attention_mask": torch.ones_like(source), "decoder_attention_mask": torch.ones_like(target)}
        return config, {"input_ids": source, "decoder_input_ids": target, **masks}


class DecoderTester(ModelTester):
    config_class, base_model_class = ReLUFormerDecoderConfig, ReLUFormerDecoderModel
    causal_lm_class = ReLUFormerForCausalLM
    hidden_size = 32
    num_key_value_heads = 2

    def sizes(self) -> dict[str, Any]:
        names = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
        sizes = {name: getattr(self, name) for name in names}
        return {**sizes, "intermediate_size": 37, "max_position_embeddings": 512}

    def prepare_config_and_inputs_for_common(self) -> tuple[ReLUFormerDecoderConfig, dict[str, torch.Tensor]]:
        ids = self.token_ids()
        return self.get_config(), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


class VisionTester(ModelTester):
    config_class = ReLUFormerVisionConfig
    image_size = 30
    patch_size = 2
    num_channels = 3
    hidden_size = 32
    intermediate_size = 37
    type_sequence_label_size = 10

    def __init__(self, parent: Any, **fields: Any) -> None:
        super().__init__(parent, **fields)
        self.seq_length = (self.image_size // self.patch_size) ** 2 + (fields.get("pooling") == "cls")

    def sizes(self) -> dict[str, Any]:
        names = ("image_size", "patch_size", "num_channels", "hidden_size", "num_hidden_layers")
        sizes = {name: getattr(self, name) for name in (*names, "num_attention_heads", "intermediate_size")}
        return {**sizes, "initialization": "normal"}  # a start of zeros, as the paper's, would make comparisons empty

    def prepare_config_and_inputs_for_common(self) -> tuple[ReLUFormerVisionConfig, dict[str, torch.Tensor]]:
        shape = (self.batch_size, self.num_channels, self.image_size, self.image_size)
        return self.get_config(), {"pixel_values": torch.rand(shape)}


class ModelTests(LIBRARY.modeling.ModelTesterMixin):
    """What holds for every model; a subclass names its `ModelTester`, and in `attention_fields` the attention."""

    # our files carry no year, which the library reads as before 2023
    test_can_init_all_missing_weights_before_2023 = True
    attention_fields: dict = {}
    tiny: type[ModelTester]
    few: dict  # fields of a small configuration
    config_options: dict = {}

    def setUp(self):
        self.model_tester = self.tiny(self, **self.attention_fields)

    def test_config(self):
        options = {**self.config_options, **self.few, **self.attention_fields}
        LIBRARY.configuration.ConfigTester(self, config_class=self.tiny.config_class, **options).run_common_tests()

    # The next two pass output_attentions=True to a model as it is by default. The library's models then return nothing,
    # in silence, unless they are `eager`; ours refuse.

    def test_capture_outputs_decorator(self):
        self.model_tester.attn_implementation = "eager"
        super().test_capture_outputs_decorator()

    def test_model_outputs_equivalence(self):
        self.model_tester.attn_implementation = "eager"
        super().test_model_outputs_equivalence()


class GenerationTests(ModelTests, LIBRARY.modeling.GenerationTesterMixin):
    """What holds for every model that generates."""

    if LIBRARY.generation_missing:

        def test_generation_tester_mixin_inheritance(self):
            self.skipTest(LIBRARY.generation_missing)


class RefusesSdpa:
    """Scaled dot-product attention is softmax: its rows sum to one. Any other attention refuses it.

    The library's comparison of `eager` with `sdpa` runs all the same: it takes the default where `sdpa` is refused,
    which for point-wise attention is `fused`.
    """

    @unittest.skip("sets sdpa and wants it to be accepted; its rows sum to one, so this attention refuses it")
    def test_can_set_attention_dynamically(self):
        pass

    @unittest.skip("wants sdpa to be the default; its rows sum to one, so this attention has another default")
    def test_sdpa_can_dispatch_non_composite_models(self):
        pass


class ReLUFormerTests(GenerationTests):
    all_model_classes = (ReLUFormerModel, ReLUFormerForConditionalGeneration)
    is_encoder_decoder = True
    tiny = TranslationTester
    few = {"d_model": 16, "encoder_attention_heads": 2}


class ReluTest(RefusesSdpa, ReLUFormerTests, unittest.TestCase):
    attention_fields = {"attention_activation": "relu"}


class ReluLengthScalingTest(RefusesSdpa, ReLUFormerTests, unittest.TestCase):
    attention_fields = {"attention_activation": "relu", "attention_scaling": "length"}


class RelaTest(RefusesSdpa, ReLUFormerTests, unittest.TestCase):
    attention_fields = PRESETS["rela"]


class Entmax15Test(RefusesSdpa, ReLUFormerTests, unittest.TestCase):
    attention_fields = {"attention_activation": "entmax15"}


class SoftmaxTest(ReLUFormerTests, unittest.TestCase):
    attention_fields = {"attention_activation": "softmax"}


class DecoderTests(GenerationTests):
    all_model_classes = (ReLUFormerDecoderModel, ReLUFormerForCausalLM)
    pipeline_model_mapping = {"feature-extraction": ReLUFormerDecoderModel, "text-generation": ReLUFormerForCausalLM}
    tiny = DecoderTester
    few = {"hidden_size": 16, "num_attention_heads": 2}

    @unittest.skip(
        "gives an additive mask of four dimensions, which no point-wise activation can take, so that all models refuse "
        "it"
    )
    def test_custom_4d_attention_mask(self):
        pass


class HasNoRope:
    """These take any model whose configuration has the field `rope_parameters`; here it is None with learned
    positions."""

    @unittest.skip("RoPE is what other positions of this model are")
    def test_model_rope_scaling_from_config(self):
        pass

    test_model_rope_scaling_from_config_0_linear = test_model_rope_scaling_from_config
    test_model_rope_scaling_from_config_1_dynamic = test_model_rope_scaling_from_config
    test_model_rope_scaling_from_config_2_yarn = test_model_rope_scaling_from_config
    test_model_rope_with_partial_rotation = test_model_rope_scaling_from_config


class Gpt2ReluTest(RefusesSdpa, HasNoRope, DecoderTests, unittest.TestCase):
    attention_fields = {"attention_activation": "relu", "regularization_weight": 0.0}


class NormalizationFreeTest(HasNoRope, DecoderTests, unittest.TestCase):
    attention_fields = DECODER_PRESETS["normalization_free"]


class LlamaReluTest(RefusesSdpa, DecoderTests, unittest.TestCase):
    attention_fields = {**DECODER_PRESETS["llama_relu"], "attention_scaling": "variance"}


class LlamaSoftmaxTest(DecoderTests, unittest.TestCase):
    attention_fields = {
        **DECODER_PRESETS["llama_relu"],
        **{"attention_activation": "softmax", "attention_scaling": "none", "ffn_type": "dglu"},
    }


class VisionTests(ModelTests):
    all_model_classes = (ReLUFormerVisionModel, ReLUFormerForImageClassification)
    pipeline_model_mapping = {"image-classification": ReLUFormerForImageClassification}
    test_resize_embeddings = False
    tiny = VisionTester
    few = {"hidden_size": 16, "num_attention_heads": 2}
    config_options = {"has_text_modality": False}

    def test_model_get_set_embeddings(self):
        """As ViT's own test: the embeddings are those of patches, and there is no output layer that is one."""
        config, _ = self.model_tester.prepare_config_and_inputs_for_common()
        for model_class in self.all_model_classes:
            model = model_class(config)
            self.assertIs(model.get_input_embeddings(), model.base_model.embeddings.patch_embeddings)
            self.assertIsNone(model.get_output_embeddings())

    @unittest.skip("Pictures have no embeddings of tokens")
    def test_inputs_embeds(self):
        pass


class VisionReluTest(RefusesSdpa, VisionTests, unittest.TestCase):
    attention_fields = {"attention_activation": "relu", "regularization_weight": 0.0}


class VisionSoftmaxClsTest(VisionTests, unittest.TestCase):
    attention_fields = {"attention_activation": "softmax", "attention_qk_norm": False, "pooling": "cls"}
