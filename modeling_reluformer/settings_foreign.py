"""`reluformer.other_models.settings` by the name that it has in the documentation of 0.1."""

import sys

from .other_models import settings

sys.modules[__name__] = settings
