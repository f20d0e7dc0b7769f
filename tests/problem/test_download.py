import dataclasses
import gzip
import io
import tarfile
import threading
import time
from contextlib import suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from kedge.errors import UsageError
from kedge.problem import load_dataset
from kedge.problem.datasets import cifar, download, mnist

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
def mnist_mirror(mirror, small_sets, monkeypatch):
    folder, address = mirror
    for name, array in mnist_arrays().items():
        (folder / f"{name}.gz").write_bytes(gzip.compress(idx_bytes(array)))
    monkeypatch.setitem(mnist.KINDS, "mnist", dataclasses.replace(mnist.KINDS["mnist"], mirror=address))
    return folder


def archived(archive, members):
    with tarfile.open(archive, "w:gz") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


def cifar_members():
    return {f"cifar-10-batches-bin/{name}.bin": cifar_binary(*batch) for name, batch in cifar_arrays().items()}


@pytest.fixture
def cifar_mirror(mirror, small_sets, monkeypatch):
    folder, address = mirror
    archive = folder / "cifar-10-binary.tar.gz"
    archived(archive, cifar_members())
    kind = dataclasses.replace(cifar.KINDS["cifar10"], mirror=address + archive.name)
    monkeypatch.setitem(cifar.KINDS, "cifar10", kind)
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
    assert files(tmp_path / "data") == sorted(cifar.KINDS["cifar10"].versions[0].files)
    cifar_mirror.unlink()
    assert len(load_dataset("cifar10", tmp_path / "data").test[1]) == 4


def test_a_wrong_checksum_is_refused_and_leaves_no_file(mnist_mirror, tmp_path):
    path = mnist_mirror / "train-images-idx3-ubyte.gz"
    content = bytearray(gzip.decompress(path.read_bytes()))
    content[-1] ^= 1
    path.write_bytes(gzip.compress(content))
    with pytest.raises(UsageError, match=r"train-images-idx3-ubyte\.gz has the SHA-256 .* and not"):
        load_dataset("mnist", tmp_path / "data")
    assert files(tmp_path / "data") == []


def test_a_wrong_batch_in_the_archive_is_refused_and_leaves_no_part_of_it(cifar_mirror, tmp_path, make_official):
    make_official(cifar.KINDS["cifar10"].versions[0].files, "data_batch_2.bin", b"other")
    with pytest.raises(UsageError, match=r"data_batch_2\.bin holds more than 5 bytes"):
        load_dataset("cifar10", tmp_path / "data")
    assert files(tmp_path / "data") == ["data_batch_1.bin"]


@pytest.mark.parametrize("content", [b"no archive", None])
def test_a_broken_archive_is_refused_and_leaves_no_file(cifar_mirror, tmp_path, content):
    whole = cifar_mirror.read_bytes()
    cifar_mirror.write_bytes(whole[: len(whole) // 20] if content is None else content)
    with pytest.raises(UsageError, match=r"cifar-10-binary\.tar\.gz is not the official archive"):
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
    kind = dataclasses.replace(cifar.KINDS["cifar10"], mirror="http://127.0.0.1:9/cifar-10-binary.tar.gz")
    monkeypatch.setitem(cifar.KINDS, "cifar10", kind)
    with pytest.raises(UsageError, match=r"cifar10 is not in .*refused.*put data_batch_1\.bin, .* or set --data-dir"):
        load_dataset("cifar10", tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_nothing_is_downloaded_when_download_is_off(mnist_mirror, tmp_path):
    with pytest.raises(UsageError, match=r"mnist is not in .* and download is off; put train-images"):
        load_dataset("mnist", tmp_path / "data", download=False)
    assert not (tmp_path / "data").exists()


def test_every_mirror_is_asked_by_https():
    assert all(kind.mirror.startswith("https://") for kind in [*mnist.KINDS.values(), *cifar.KINDS.values()])


def test_a_larger_file_than_the_official_one_is_not_downloaded(mnist_mirror, tmp_path):
    (mnist_mirror / "train-images-idx3-ubyte.gz").write_bytes(b"x" * 1_000_000)
    told = []
    with pytest.raises(UsageError, match=r"train-images-idx3-ubyte\.gz is larger than 89072 bytes"):
        load_dataset("mnist", tmp_path / "data", progress=lambda name, done, total: told.append(done))
    assert told == []
    assert files(tmp_path / "data") == []


def test_a_packed_bomb_is_not_unpacked(mnist_mirror, tmp_path):
    bomb = gzip.compress(b"\0" * 20_000_000)
    (mnist_mirror / "train-images-idx3-ubyte.gz").write_bytes(bomb)
    with pytest.raises(UsageError, match=r"train-images-idx3-ubyte\.gz holds more than 23536 bytes"):
        load_dataset("mnist", tmp_path / "data")
    assert files(tmp_path / "data") == []


@pytest.mark.parametrize("name", ["bomb", "cifar-10-batches-bin/data_batch_1.bin"])
def test_a_bomb_in_an_archive_is_not_unpacked(cifar_mirror, tmp_path, name):
    archived(
        cifar_mirror, {name: b"\0" * 20_000_000} | cifar_members() if name == "bomb" else {name: b"\0" * 20_000_000}
    )
    with pytest.raises(UsageError, match=r"it is too large|data_batch_1\.bin holds more than"):
        load_dataset("cifar10", tmp_path / "data")
    assert files(tmp_path / "data") == []


def test_an_archive_without_a_batch_is_refused(cifar_mirror, tmp_path):
    archived(cifar_mirror, dict(list(cifar_members().items())[:-1]))
    with pytest.raises(UsageError, match=r"not the official archive: cifar-10-batches-bin/test_batch\.bin is missing"):
        load_dataset("cifar10", tmp_path / "data")


class Dripping(Quiet):
    """Sends a byte every now and then, of the head or of the body."""

    head = False

    def do_GET(self):
        with suppress(OSError):
            if not self.head:
                self.send_response(200)
                self.end_headers()
            for _ in range(200):
                self.wfile.write(b"x")
                self.wfile.flush()
                time.sleep(0.05)


@pytest.mark.parametrize("head", [False, True])
def test_a_server_that_drips_is_given_up_in_time(small_sets, tmp_path, monkeypatch, head):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(download, "TOTAL", 0.3)
    monkeypatch.setattr(Dripping, "head", head)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Dripping)
    server.daemon_threads, server.block_on_close = True, False
    thread = threading.Thread(target=partial(server.serve_forever, poll_interval=0.02))
    thread.start()
    kind = dataclasses.replace(mnist.KINDS["mnist"], mirror=f"http://127.0.0.1:{server.server_port}/")
    monkeypatch.setitem(mnist.KINDS, "mnist", kind)
    began = time.monotonic()
    try:
        with pytest.raises(UsageError, match=r"train-images-idx3-ubyte\.gz took longer than 0\.3 seconds"):
            load_dataset("mnist", tmp_path / "data")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert time.monotonic() - began < 3
    assert files(tmp_path) == []
