"""The parts of a corpus."""

SPLITS = ("train", "validation", "test")
EVALUATED_SPLITS = SPLITS[1:]
