"""Your own problems: each function returns a model, a federation and what else `kedge.simulate` needs."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset

import kedge


def users(seed=0):
    """A dict of users, with the sizes that real users have."""
    rng = np.random.default_rng(seed)
    samples = {name: rng.normal(size=(n, 4)).astype("float32") for name, n in {"ann": 12, "bob": 20, "eve": 35}.items()}
    clients = {name: (x, x[:, :3].argmax(1)) for name, x in samples.items()}
    return nn.Linear(4, 3), kedge.Federation(clients, test=clients["eve"]), {}


class Shaky(Dataset):
    """Images that are mirrored and made noisy again whenever they are used."""

    def __init__(self, seed):
        rng = np.random.default_rng(seed)
        self.images = torch.from_numpy(rng.normal(size=(16, 1, 6, 6)).astype("float32"))
        self.labels = (self.images.mean((1, 2, 3)) > 0).long()

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        image = self.images[i].flip(-1) if torch.rand(()) < 0.5 else self.images[i]
        return image + 0.1 * torch.randn(image.shape), int(self.labels[i])


def augmentation():
    """A Dataset per client with random transforms: the slow path, keyed like everything else."""
    test = Shaky(100)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2))
    return model, kedge.Federation([Shaky(i) for i in range(5)], (test.images, test.labels), lazy=True), {}


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.users, self.films = nn.Embedding(20, 8), nn.Linear(6, 8)

    def forward(self, user, film):
        return (self.users(user) * self.films(film)).sum(1)


def two_inputs(seed=0):
    """Two inputs per sample, as a tuple; a dict {"user": ..., "film": ...} would do as well. The target is a rating."""
    rng = np.random.default_rng(seed)

    def some(n):
        film = rng.normal(size=(n, 6)).astype("float32")
        return (rng.integers(0, 20, n), film), film[:, 0] - 1.0

    return Towers(), kedge.Federation([some(20) for _ in range(5)], test=some(30)), {"loss": nn.MSELoss()}


def ignored_labels(seed=0):
    """Some labels are unknown: -100 counts neither in the loss nor in the accuracy."""
    rng = np.random.default_rng(seed)

    def some(n):
        labels = rng.integers(0, 3, n)
        labels[rng.random(n) < 0.5] = -100
        return rng.normal(size=(n, 4)).astype("float32"), labels

    return nn.Linear(4, 3), kedge.Federation([some(20) for _ in range(5)], test=some(40)), {}


class NextToken(nn.Module):
    def __init__(self, tokens=12):
        super().__init__()
        self.embed, self.gru, self.out = nn.Embedding(tokens, 8), nn.GRU(8, 16, batch_first=True), nn.Linear(16, tokens)

    def forward(self, tokens):
        return self.out(self.gru(self.embed(tokens))[0])  # (samples, tokens, vocabulary)


def tokens(seed=0):
    """A language model: inputs and labels (samples, tokens), and an accuracy per token."""
    rng = np.random.default_rng(seed)

    def some(n, start):
        text = (start + rng.integers(1, 3, (n, 9)).cumsum(1)) % 12
        return text[:, :-1], text[:, 1:]

    return NextToken(), kedge.Federation([some(16, i) for i in range(5)], test=some(30, 0)), {}


class LoRA(nn.Module):
    """A frozen linear layer and a trained one of low rank."""

    def __init__(self, linear, rank=2):
        super().__init__()
        self.linear = linear.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, linear.in_features) / 8)
        self.b = nn.Parameter(torch.zeros(linear.out_features, rank))

    def forward(self, x):
        return self.linear(x) + x @ self.a.T @ self.b.T


class Output:
    def __init__(self, logits):
        self.logits = logits


class Transformer(nn.Module):
    """A small transformer in the style of Hugging Face: keyword arguments in, an object with logits out."""

    def __init__(self, tokens=12):
        super().__init__()
        self.embed = nn.Embedding(tokens, 16).requires_grad_(False)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True).requires_grad_(False)
        self.up, self.down = LoRA(nn.Linear(16, 32)), LoRA(nn.Linear(32, 16))
        self.head = nn.Linear(16, 2)

    def forward(self, input_ids, attention_mask):
        x = self.embed(input_ids)
        x = x + self.attention(x, x, x, key_padding_mask=attention_mask == 0, need_weights=False)[0]
        x = x + self.down(torch.relu(self.up(x)))
        return Output(self.head(x[:, 0]))


def lora(seed=0):
    """Only the adapters and the head are trained, sent and averaged."""
    rng = np.random.default_rng(seed)

    def some(n):
        ids = rng.integers(0, 12, (n, 7))
        mask = (np.arange(7) < rng.integers(3, 8, (n, 1))).astype("int64")
        return {"input_ids": ids, "attention_mask": mask}, (ids[:, 0] > 5).astype("int64")

    return Transformer(), kedge.Federation([some(20) for _ in range(5)], test=some(40)), {}


def regression(seed=0):
    """Targets are any real numbers, here negative ones."""
    rng = np.random.default_rng(seed)

    def some(n):
        x = rng.normal(size=(n, 4)).astype("float32")
        return x, x[:, :1] - 5

    return nn.Linear(4, 1), kedge.Federation([some(20) for _ in range(5)], test=some(40)), {"loss": nn.MSELoss()}


def several_labels(seed=0):
    """Several yes-or-no labels per sample."""
    rng = np.random.default_rng(seed)

    def some(n):
        x = rng.normal(size=(n, 4)).astype("float32")
        return x, x[:, :3] > 0

    loss = nn.BCEWithLogitsLoss()
    return nn.Linear(4, 3), kedge.Federation([some(20) for _ in range(5)], test=some(40)), {"loss": loss}


WORLDS = [
    users, augmentation, two_inputs, ignored_labels, tokens, lora, regression, several_labels,
]
