import dataclasses
import gzip
import hashlib
import io
import tarfile
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from kedge.errors import UsageError
from kedge.problem import load_dataset
from kedge.problem.datasets import cifar, mnist

from .files import cifar_arrays, cifar_binary, idx_bytes, mnist_arrays


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@pytest.fixture
def mirror(tmp_path, monkeypatch):
    """A folder and the address under which it is served."""
    folder = tmp_path / "mirror"
    folder.mkdir()
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=partial(server.serve_forever, poll_interval=0.02))
    thread.start()
    yield folder, f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def mnist_mirror(mirror, monkeypatch):
    folder, address = mirror
    checksums = []
    for name, array in mnist_arrays().items():
        content = gzip.compress(idx_bytes(array))
        (folder / f"{name}.gz").write_bytes(content)
        checksums.append(f"md5:{hashlib.md5(content).hexdigest()}")
    kind = dataclasses.replace(mnist.KINDS["mnist"], mirror=address, checksums=tuple(checksums))
    monkeypatch.setitem(mnist.KINDS, "mnist", kind)
    return folder


@pytest.fixture
def cifar_mirror(mirror, monkeypatch):
    folder, address = mirror
    archive = folder / "cifar-10-binary.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for name, batch in cifar_arrays().items():
            content = cifar_binary(*batch)
            monkeypatch.setitem(cifar.CHECKSUMS, name, f"sha256:{hashlib.sha256(content).hexdigest()}")
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}.bin")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    monkeypatch.setattr(cifar, "MIRROR", address + archive.name)
    return archive


def files(folder):
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_missing_mnist_files_are_downloaded_once(mnist_mirror, tmp_path, capfd):
    data = load_dataset("mnist", tmp_path / "data")
    assert data.train[0].shape == (30, 1, 28, 28)
    assert files(tmp_path / "data") == files(mnist_mirror)
    for path in mnist_mirror.iterdir():
        path.unlink()
    assert len(load_dataset("mnist", tmp_path / "data").test[1]) == 10
    assert capfd.readouterr() == ("", "")


def test_progress_is_told_every_file_up_to_its_size(mnist_mirror, tmp_path):
    told = {}

    def progress(name, done, total):
        assert told.get(name, (0, total))[0] <= done <= total
        told[name] = done, total

    load_dataset("mnist", tmp_path / "data", progress=progress)
    sizes = {path.name: path.stat().st_size for path in mnist_mirror.iterdir()}
    assert told == {name: (size, size) for name, size in sizes.items()}


def test_missing_cifar_files_are_downloaded_once(cifar_mirror, tmp_path):
    assert load_dataset("cifar10", tmp_path / "data").train[0].shape == (20, 3, 32, 32)
    assert files(tmp_path / "data") == sorted(f"{name}.bin" for name in cifar.CHECKSUMS)
    cifar_mirror.unlink()
    assert len(load_dataset("cifar10", tmp_path / "data").test[1]) == 4


def test_a_wrong_checksum_is_refused_and_leaves_no_file(mnist_mirror, tmp_path):
    path = mnist_mirror / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UsageError, match=r"train-images-idx3-ubyte\.gz has the md5 checksum .* and not"):
        load_dataset("mnist", tmp_path / "data")
    assert files(tmp_path / "data") == []


def test_a_wrong_batch_in_the_archive_is_refused_and_leaves_no_part_of_it(cifar_mirror, tmp_path, monkeypatch):
    monkeypatch.setitem(cifar.CHECKSUMS, "data_batch_2", "sha256:00")
    with pytest.raises(UsageError, match=r"data_batch_2\.bin has the sha256 checksum"):
        load_dataset("cifar10", tmp_path / "data")
    assert files(tmp_path / "data") == ["data_batch_1.bin"]


@pytest.mark.parametrize("content", [b"no archive", None])
def test_a_broken_archive_is_refused_and_leaves_no_file(cifar_mirror, tmp_path, content):
    whole = cifar_mirror.read_bytes()
    cifar_mirror.write_bytes(whole[: len(whole) // 20] if content is None else content)
    with pytest.raises(UsageError, match=r"cifar-10-binary\.tar\.gz is not the archive of CIFAR-10"):
        load_dataset("cifar10", tmp_path / "data")
    assert files(tmp_path / "data") == []


def test_a_download_that_stops_halfway_leaves_no_file(mnist_mirror, tmp_path):
    def progress(name, done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load_dataset("mnist", tmp_path / "data", progress=progress)
    assert files(tmp_path / "data") == []


def test_a_failed_download_says_what_to_put_where(mnist_mirror, tmp_path):
    (mnist_mirror / "t10k-labels-idx1-ubyte.gz").unlink()
    data = tmp_path / "data"
    with pytest.raises(UsageError) as error:
        load_dataset("mnist", data)
    assert str(error.value) == (
        f"mnist is not in {data} and could not be downloaded (File not found); put train-images-idx3-ubyte, "
        f"train-labels-idx1-ubyte, t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte into {data}/MNIST/raw, "
        "or set --data-dir or KEDGE_DATA"
    )
    assert len(files(data)) == 3


def test_an_unreachable_mirror_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(cifar, "MIRROR", "http://127.0.0.1:9/cifar-10-binary.tar.gz")
    with pytest.raises(UsageError, match=r"cifar10 is not in .*refused.*put data_batch_1\.bin, .* or set --data-dir"):
        load_dataset("cifar10", tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_nothing_is_downloaded_when_download_is_off(mnist_mirror, tmp_path):
    with pytest.raises(UsageError, match=r"mnist is not in .* and download is off; put train-images"):
        load_dataset("mnist", tmp_path / "data", download=False)
    assert not (tmp_path / "data").exists()
