"""The seed of what reply transforms draw: a secret of whoever draws, and other noise for every message.

Noise that others can compute from the public seed of a run hides nothing. A round that is played again has other
repliers, or other messages: with the same noise, the difference of the two would have none. So it draws new noise, and
counts as one more release of the data.
"""

import hashlib
import secrets
from pathlib import Path

from kedge.errors import UsageError
from kedge.files import make_directory, read, write_atomically

FILE = "noise.key"


def noise_seed(directory: Path) -> int:
    """Return the secret of a directory; the first call makes it."""
    path = directory / FILE
    try:
        text = read(path, 100).decode("ascii", "replace").strip()
    except FileNotFoundError:
        make_directory(directory)
        text = str(secrets.randbits(63))
        write_atomically(path, text.encode(), mode=0o600)
    if not text.isdecimal() or int(text) >= 1 << 63:
        raise UsageError(f"{path} is not a key: it must be a whole number of 63 bits")
    return int(text)


def noise_of(seed: int, tag: str) -> int:
    """Return the seed of one message, or of one attempt at a round."""
    return int.from_bytes(hashlib.blake2b(f"{seed} {tag}".encode(), digest_size=8).digest(), "big") >> 1
