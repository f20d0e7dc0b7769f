"""A client's state on its own disk, in versions. Nothing is ever promoted.

An answer makes a new version under the tag that the question gave. It counts once the server names it as the base of a
later question; a version whose reply was lost is never named. Tags rise from question to question, and a
question removes only versions older than itself, and of these not the one that it starts from nor the one to which the
server may still return. So a question that arrives late, twice or not at all needs no repair.
"""

from collections.abc import Mapping
from pathlib import Path

import safetensors
from safetensors.torch import load
from torch import Tensor

from kedge.errors import UsageError
from kedge.files import make_directory, read, remove
from kedge.flower.arrays import Spec
from kedge.flower.stream import write_tensors
from kedge.flower.wire import Layout

FRESH = ""
"""The tag of a client that has not taken part yet."""


class LostStateError(UsageError):
    """A version that the server counts on is not there."""


class Versions:
    """The versions of one client's state in a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def path(self, tag: str) -> Path:
        """Return where a version is."""
        return self._directory / f"{tag}.safetensors"

    def load(self, tag: str, forms: Layout) -> dict[str, Tensor]:
        """Return a version, which must have this form."""
        path = self.path(tag)
        try:
            found = load(read(path, sum(form.bytes for form in forms.values()) + (1 << 20)))
        except FileNotFoundError:
            raise LostStateError(f"it has lost its state: there is no {path}") from None
        except safetensors.SafetensorError as error:
            raise LostStateError(f"it has lost its state: {path} cannot be read: {error}") from None
        if {name: Spec.of(value) for name, value in found.items()} != dict(forms):
            raise LostStateError(f"it has lost its state: {path} holds vectors that are not the algorithm's")
        return found

    def save(self, tag: str, state: Mapping[str, Tensor], keep: set[str]) -> None:
        """Write a version, then remove what is older than it and not to be kept."""
        make_directory(self._directory)
        write_tensors(self.path(tag), state)
        for other in self.tags():
            if other < tag and other not in keep:
                remove(self.path(other))

    def tags(self) -> list[str]:
        """Return what is there, oldest first."""
        return sorted(path.stem for path in self._directory.glob("*.safetensors"))


class Messages:
    """What a round has told this client so far, on its disk: the next exchange may come to another process."""

    def __init__(self, directory: Path) -> None:
        self._versions = Versions(directory)

    def load(self, attempt: str) -> dict[str, Tensor]:
        """Return the vectors that an attempt at a round has sent so far."""
        try:
            return load(read(self._versions.path(attempt)))
        except (FileNotFoundError, safetensors.SafetensorError):
            return {}

    def save(self, attempt: str, fields: Mapping[str, Tensor]) -> None:
        """Keep the vectors of an attempt, instead of those of earlier ones."""
        self._versions.save(attempt, fields, set())
