"""Feed-forward networks that read no weights behind a zero, which a repository on the Hub does not carry."""
