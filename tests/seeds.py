"""The seed of a random test's choices: SEED in the environment, or another one each time.

CI sets it, so that what it refuses can be repeated; whoever runs a test by hand looks further.
"""

import os
import random
from typing import Final

FIXED: Final = int(os.environ.get("SEED", "") or 0)
"""0 where nobody gave one."""

SEED: Final = FIXED or random.SystemRandom().randrange(1, 2**31)
