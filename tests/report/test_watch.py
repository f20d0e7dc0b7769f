"""The live page: it follows what runs write, answers only whom it should, and touches nothing."""

import http.client
import json
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest

import kedge
from kedge.cli.program import execute
from kedge.report.watch import Followed, PageServer
from tests.report.browser import CHROMIUM, chromium, opened, serious
from tests.report.made import rows_of, write_comparison, write_run


@contextmanager
def serving(folder):
    with PageServer(folder) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def ask(server, path, method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), dict(answer.getheaders())
    finally:
        connection.close()


@pytest.fixture
def folder(tmp_path):
    return write_comparison(tmp_path / "runs")


def test_the_page_and_its_data_are_served_to_whoever_has_the_token(folder):
    with serving(folder) as server:
        where = urlsplit(server.address)
        status, text, headers = ask(server, f"{where.path}?{where.query}")
        assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
        assert 'data-live="true"' in text
        assert (headers["Cache-Control"], headers["X-Frame-Options"]) == ("no-store", "DENY")
        status, text, headers = ask(server, f"/data.json?{where.query}", Host=f"localhost:{server.server_port}")
        assert (status, len(json.loads(text)["runs"])) == (200, 6)
        seen = headers["X-Seen"]
        assert ask(server, f"/data.json?{where.query}&seen={seen}")[:2] == (204, "")
        with (folder / "fedavg-0" / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(rows_of(21)[-1]) + "\n")
        deadline, status = time.monotonic() + 30, 204
        while status == 204 and time.monotonic() < deadline:  # it rests as long as it took to look
            status, text, _ = ask(server, f"/data.json?{where.query}&seen={seen}")
        assert (status, json.loads(text)["runs"][0]["rows"]) == (200, 21)


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/", {}, 403),
        ("/?token=wrong", {}, 403),
        ("/?token=%ff", {}, 403),
        ("/data.json", {}, 403),
        ("/{token}", {"Host": "evil.example"}, 403),
        ("/{token}", {"Host": "127.0.0.1"}, 403),
        ("/{token}", {"Host": "127.0.0.1.evil.example:{port}"}, 403),
        ("http://evil.example/{token}", {"Host": "evil.example"}, 403),
        ("/fedavg-0/config.toml{token}", {}, 404),
        ("/../../../etc/passwd{token}", {}, 404),
        ("/%2e%2e/%2e%2e/etc/passwd{token}", {}, 404),
        ("//etc/passwd{token}", {}, 404),
        ("/" + "&".join("a" * 20) + "?" + "&".join("a=1" for _ in range(50)), {}, 400),
    ],
)
def test_nobody_else_gets_anything(folder, path, headers, status):
    with serving(folder) as server:
        fill = {"{token}": f"?token={server.token}", "{port}": str(server.server_port)}
        for mark, value in fill.items():
            path = path.replace(mark, value)
            headers = {name: text.replace(mark, value) for name, text in headers.items()}
        got, text, _ = ask(server, path, **headers)
        assert got == status
        assert "fedavg" not in text
        assert server.token not in text


def test_it_listens_on_loopback_only_and_answers_nothing_but_get(folder):
    with serving(folder) as server:
        assert server.socket.getsockname()[0] == "127.0.0.1"
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            assert ask(server, f"/?token={server.token}", method)[0] == 501
        with pytest.raises(kedge.UsageError, match=f"port is {server.server_port}, but it cannot be used"):
            PageServer(folder, server.server_port)


def test_following_reads_only_what_changed_and_writes_nothing(folder):
    before = {file: (file.lstat().st_mtime_ns, file.lstat().st_size) for file in [folder, *folder.rglob("*")]}
    followed = Followed(folder)
    first = followed.runs()
    state = followed.state()
    assert all(old is new for old, new in zip(first, followed.runs(), strict=True))
    assert followed.state() == state
    assert {file: (file.lstat().st_mtime_ns, file.lstat().st_size) for file in before} == before
    write_run(folder / "new", ended=False, rows=rows_of(2))
    again = followed.runs()
    assert len(again) == 7
    assert followed.state() != state
    with pytest.raises(kedge.UsageError, match="nowhere is not a folder"):
        Followed(folder / "nowhere")


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed (Debian: apt-get install chromium)")
def test_the_page_follows_a_run_as_it_grows(tmp_path):
    rows = rows_of(20)
    with serving(tmp_path) as server, chromium() as browser, opened(browser, server.address) as page:
        page.wait_for_selector("#live:has-text('there are no runs yet')")
        run = write_run(tmp_path / "run", ended=False, rows=rows[:3])
        page.wait_for_selector("#run-table:has-text('not finished: round 3 of 20')")
        page.focus("#legend button")
        with (run / "metrics.jsonl").open("a") as file:
            file.write("".join(json.dumps(row) + "\n" for row in rows[3:8]) + '{"round": 9, "torn')
        page.wait_for_selector("#run-table:has-text('not finished: round 8 of 20')")
        assert page.evaluate("state.drawn[0].curve.round") == list(range(1, 9))
        assert page.evaluate("document.activeElement.textContent") == "scaffold-m"
        assert serious(page) == []


def test_the_command_prints_the_address_and_ends_with_ctrl_c(folder):
    command = [sys.executable, "-m", "kedge", "watch", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        line = process.stdout.readline()
        assert re.fullmatch(r"Watching \S+ at http://127\.0\.0\.1:\d+/\?token=\S{32}\n", line)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=30)
    assert (process.returncode, "not affected" in error) == (0, True)


def test_the_terminal_shows_the_runs_that_are_going_first(folder, capsys):
    write_run(folder / "zz", ended=False, rows=rows_of(7))
    write_run(folder / "aa", diverged_in_round=4)
    assert execute(["watch", "--terminal", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert " ".join(lines[1].split()) == "zz scaffold-m 0 7 45.3% 1.142 0.7 not finished: round 7 of 20"
    assert any("diverged in round 4" in line for line in lines)
    assert "8 runs, 7 of them ended" in lines[-1]


def test_the_terminal_shows_where_a_run_is_and_what_it_was_evaluated_on(tmp_path, capsys):
    write_run(tmp_path / "runs" / "eta0.1-seed0", settings={"data.holdout": 0.1})
    assert execute(["watch", "--terminal", str(tmp_path)]) == 0
    head, row, end = (" ".join(line.split()) for line in capsys.readouterr().out.splitlines())
    assert head == "run algorithm seed round held-out accuracy held-out loss seconds state"
    assert row.startswith("runs/eta0.1-seed0 scaffold-m 0 20 ")
    assert end == "1 run, all ended"
    write_run(tmp_path / "best" / "eta0.1-seed0")
    assert execute(["watch", "--terminal", str(tmp_path)]) == 0
    head, *rows, end = (" ".join(line.split()) for line in capsys.readouterr().out.splitlines())
    assert "evaluated on accuracy loss" in head
    assert [row.split()[0] for row in rows] == ["best/eta0.1-seed0", "runs/eta0.1-seed0"]
    assert [row.split()[4:6] for row in rows] == [["test", "set"], ["held-out", "samples"]]
    assert end == "2 runs, all ended"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [(["nowhere"], "nowhere is not a folder"), (["--terminal", "nowhere"], "nowhere is not a folder"),
     ([".", "--port", "70000"], "port")],
)  # fmt: skip
def test_a_wrong_watch_is_one_sentence(tmp_path, monkeypatch, capsys, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    assert execute(["watch", *arguments]) == 2
    assert sentence in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
