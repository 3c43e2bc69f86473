"""The library's own tests of its models, run on the decoder-only model once for each kind: `make test-peer`."""

from __future__ import annotations

import unittest

import pytest

from reluformer import ReLUFormerDecoderConfig, ReLUFormerDecoderModel, ReLUFormerForCausalLM

from .decoder_model_tester import ReLUFormerDecoderModelTester
from .library_tests import NotDownloadableError, load_library_tests

try:
    LIBRARY = load_library_tests()
except NotDownloadableError as error:
    pytest.skip(str(error), allow_module_level=True)


class DecoderTests(LIBRARY.modeling.ModelTesterMixin, LIBRARY.generation_mixin):
    """What holds for every kind of model; a subclass says which one it is."""

    all_model_classes = (ReLUFormerDecoderModel, ReLUFormerForCausalLM)
    pipeline_model_mapping = {"feature-extraction": ReLUFormerDecoderModel, "text-generation": ReLUFormerForCausalLM}
    # our files carry no year, which the library reads as before 2023
    test_can_init_all_missing_weights_before_2023 = True
    fields: dict = {}

    def setUp(self):
        self.model_tester = ReLUFormerDecoderModelTester(self, **self.fields)

    def test_config(self):
        fields = {"hidden_size": 16, "num_attention_heads": 2, **self.fields}
        LIBRARY.configuration.ConfigTester(self, config_class=ReLUFormerDecoderConfig, **fields).run_common_tests()

    # As in test_library_mixins.py: these pass output_attentions=True to a model as it is by default.

    def test_capture_outputs_decorator(self):
        self.model_tester.attn_implementation = "eager"
        super().test_capture_outputs_decorator()

    def test_model_outputs_equivalence(self):
        self.model_tester.attn_implementation = "eager"
        super().test_model_outputs_equivalence()

    @unittest.skip(
        "gives an additive mask of four dimensions, which no point-wise activation can take, so that all models refuse it"
    )
    def test_custom_4d_attention_mask(self):
        pass

    if LIBRARY.generation_missing:

        def test_generation_tester_mixin_inheritance(self):
            self.skipTest(LIBRARY.generation_missing)


class HasNoRope:
    """These take any model whose configuration has the field `rope_parameters`; here it is None with learned positions."""

    @unittest.skip("RoPE is what other positions of this model are")
    def test_model_rope_scaling_from_config(self):
        pass

    test_model_rope_scaling_from_config_0_linear = test_model_rope_scaling_from_config
    test_model_rope_scaling_from_config_1_dynamic = test_model_rope_scaling_from_config
    test_model_rope_scaling_from_config_2_yarn = test_model_rope_scaling_from_config
    test_model_rope_with_partial_rotation = test_model_rope_scaling_from_config


class RefusesSdpa:
    """See `RefusesSdpa` of test_library_mixins.py."""

    @unittest.skip("sets sdpa and wants it to be accepted; its rows sum to one, so this attention refuses it")
    def test_can_set_attention_dynamically(self):
        pass

    @unittest.skip("wants sdpa to be the default; its rows sum to one, so this attention has another default")
    def test_sdpa_can_dispatch_non_composite_models(self):
        pass


class Gpt2ReluTest(RefusesSdpa, HasNoRope, DecoderTests, unittest.TestCase):
    fields = {"attention_activation": "relu", "regularization_weight": 0.0}


class NormalizationFreeTest(HasNoRope, DecoderTests, unittest.TestCase):
    fields = {"attention_activation": "softmax", "normalization": "none", "value_bias": False, "hidden_act": "relu"}


class LlamaReluTest(RefusesSdpa, DecoderTests, unittest.TestCase):
    fields = {
        "attention_activation": "relu",
        "norm_type": "rms_norm",
        "position_embedding": "rotary",
        "ffn_type": "glu",
        "hidden_act": "relu",
        "tie_word_embeddings": False,
    }


class LlamaSoftmaxTest(DecoderTests, unittest.TestCase):
    fields = {
        "attention_activation": "softmax",
        "norm_type": "rms_norm",
        "position_embedding": "rotary",
        "ffn_type": "dglu",
    }
