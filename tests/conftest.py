"""Settings of the whole suite."""

import signal

import torch
from hypothesis import settings

# Ctrl-C is heard, even if the parent of the tests ignores it, as that of a command in the background does.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Small problems do not profit from threads, and threads of one test disturb those of another.
torch.set_num_threads(1)

# How long an example takes says nothing on a shared machine, and a test must not fail by luck.
settings.register_profile("kedge", deadline=None, derandomize=True)
settings.load_profile("kedge")
