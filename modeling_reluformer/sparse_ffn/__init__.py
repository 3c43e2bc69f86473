"""Feed-forward networks that read no weights that meet a zero, which a repository on the Hub does not carry."""
