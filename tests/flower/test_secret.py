"""The secret of a directory: nobody else ever sees it."""

import os

from kedge.flower.secret import FILE, noise_seed


def test_the_key_is_never_readable_by_others(tmp_path, monkeypatch):
    modes, replace = [], os.replace

    def seen(source, target):
        modes.append(source.stat().st_mode & 0o777)
        replace(source, target)

    monkeypatch.setattr(os, "replace", seen)
    before = os.umask(0)
    try:
        secret = noise_seed(tmp_path / "own")
    finally:
        os.umask(before)
    assert modes == [0o600]
    assert (tmp_path / "own" / FILE).stat().st_mode & 0o777 == 0o600
    assert noise_seed(tmp_path / "own") == secret
