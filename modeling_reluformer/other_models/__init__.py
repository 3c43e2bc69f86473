"""ReLU attention for other models of Transformers, which a repository on the Hub does not carry."""
