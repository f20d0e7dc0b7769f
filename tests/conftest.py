"""Small problems do not profit from threads, and threads of one test disturb those of another."""

import torch

torch.set_num_threads(1)
