"""The seed of what reply transforms draw: a secret of whoever draws, and the same after a restart.

Noise that others can compute from the public seed of a run hides nothing; and a round that is played again with other
noise would tell more about the same data.
"""

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
        write_atomically(path, text.encode())
        path.chmod(0o600)
    if not text.isdecimal() or int(text) >= 1 << 63:
        raise UsageError(f"{path} is not a key: it must be a whole number of 63 bits")
    return int(text)
