"""Settings of the whole suite."""

import torch
from hypothesis import settings

# Small problems do not profit from threads, and threads of one test disturb those of another.
torch.set_num_threads(1)

# How long an example takes says nothing on a shared machine, and a test must not fail by luck.
settings.register_profile("kedge", deadline=None, derandomize=True)
settings.load_profile("kedge")
