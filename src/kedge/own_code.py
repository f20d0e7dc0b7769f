"""Your own code: `file.py:Name`, run only with consent.

A configuration or a run directory may come from somebody else, and may name a file to run. Such a file runs only if the
user has named it on this command line or has consented to it. Consent is given to a source, identified by its SHA-256:
a file that changes afterwards needs consent again. Child processes inherit it through their environment.
"""

import hashlib
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from kedge.errors import UsageError

PLACES = {
    "algorithm.name": "algorithm.sha256",
    "data.dataset": "data.sha256",
    "model.name": "model.sha256",
    "model.loss": "model.loss_sha256",
    "run.metrics": "run.metrics_sha256",
}
"""The settings that may name your own code, and where a configuration keeps the SHA-256 of its files."""

CONSENT = "KEDGE_CONSENT"
"""The environment variable with the SHA-256 of every source that may run, separated by commas."""

SHA256 = "__sha256__"
"""The attribute of a module loaded here that holds the checksum of its source."""

_loaded: dict[tuple[str, str], ModuleType] = {}


class CodePlace(NamedTuple):
    """Where a user's own class or function is."""

    file: Path
    name: str

    def __str__(self) -> str:
        return f"{self.file}:{self.name}"

    @classmethod
    def parse(cls, text: str) -> "CodePlace | None":
        """Read ``file.py:Name``; a name without a colon is built in."""
        file, colon, name = text.rpartition(":")
        return cls(Path(file), name) if colon else None

    def absolute(self) -> "CodePlace":
        """Return the same place with an absolute path."""
        return CodePlace(self.file.absolute(), self.name)

    def source(self) -> bytes:
        """Return the content of the file."""
        if self.file.suffix != ".py":
            raise UsageError(f"{self} names the file {self.file}, but only files that end in .py may run")
        try:
            file = os.open(self.file, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        except FileNotFoundError:
            raise UsageError(f"{self} names the file {self.file}, which does not exist") from None
        except (OSError, ValueError) as error:
            raise UsageError(f"{self} names a file that cannot be read: {error}") from None
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise UsageError(f"{self} names {self.file}, but that is not a regular file")
        with os.fdopen(file, "rb") as stream:
            return stream.read()

    def sha256(self) -> str:
        """Return the checksum of the source."""
        return hashlib.sha256(self.source()).hexdigest()

    @property
    def trusted(self) -> bool:
        """Whether the source may run."""
        return self.sha256() in _consents()

    def trust(self) -> None:
        """Consent to running the source as it is now."""
        os.environ[CONSENT] = ",".join(sorted({*_consents(), self.sha256()}))

    def load(self) -> Any:
        """Run the file, once, and return the object called ``name``."""
        source = self.source()
        digest = hashlib.sha256(source).hexdigest()
        if digest not in _consents():
            raise UsageError(f"{self.file} has changed, or nobody has consented to running it")
        module = _loaded.get((str(self.file.absolute()), digest))
        if module is None:
            module = _run(self.file, source, digest)
        if not hasattr(module, self.name):
            raise UsageError(f"the file {self.file} has no {self.name}")
        return getattr(module, self.name)


def _consents() -> set[str]:
    return {digest for digest in os.environ.get(CONSENT, "").split(",") if digest}


@contextmanager
def consent_ends() -> Iterator[None]:
    """Forget, on exit, all consent given inside."""
    before = os.environ.get(CONSENT)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(CONSENT, None)
        else:
            os.environ[CONSENT] = before


def _run(file: Path, source: bytes, digest: str) -> ModuleType:
    module = ModuleType(f"kedge_own_{digest[:16]}")
    module.__file__ = str(file)
    setattr(module, SHA256, digest)
    sys.modules[module.__name__] = module  # where dataclasses look for it
    try:
        exec(compile(source, str(file), "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        del sys.modules[module.__name__]
        raise UsageError(f"the file {file} cannot be run: {type(error).__name__}: {error}") from error
    _loaded[str(file.absolute()), digest] = module
    return module
