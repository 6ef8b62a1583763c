"""From logits to a token: settings, the sampler that obeys them, and stop strings.

`Settings` is a checked value, `Sampler` belongs to one sequence and chooses its tokens, within
a `Constraint` if there is one, `StopStrings` cuts its text. Nothing here knows of models or
devices.
"""

from umbel.sampling.penalties import breaker_tokens
from umbel.sampling.sampler import Sampler
from umbel.sampling.settings import Settings
from umbel.sampling.stop import StopStrings

__all__ = ["Sampler", "Settings", "StopStrings", "breaker_tokens"]
