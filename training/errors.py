"""The place from which documentation and programs of before import the errors; they live in `configuration.errors`."""

from reluformer.configuration.errors import PeerLost, TrainingStopped, UserError, one_line

__all__ = ["PeerLost", "TrainingStopped", "UserError", "one_line"]
