"""Attention on a CPU as a compiled operator, which a repository on the Hub does not carry."""
