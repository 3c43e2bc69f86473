"""The command line `reluformer`: one file a verb. Nothing imports this folder but the package's own door."""
