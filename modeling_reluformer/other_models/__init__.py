"""ReLU attention for other models of Transformers, which a repository on the Hub does not carry."""

ATTENTION_NAME = "reluformer"  # the value of `attn_implementation`, and the key of the settings in a config
