# SPDX-License-Identifier: Apache-2.0
"""compact.prepare: calls that are interrupted or fail go on, in several processes as well; calls without the library."""
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

from _preparing import CHATML, messages_of, own_cache, prepared, samples_of, TALKS, tokenizer, write  # noqa: F401 - a fixture for all tests
import pytest

import compact.prepare
from compact.prepare import command, sources, work
from compact.prepare.command import main


def test_an_interrupted_call_leaves_nothing_half_and_goes_on(tmp_path, monkeypatch, capsys):
    tokenizer(tmp_path / "tok", CHATML)
    data = write(tmp_path / "a.jsonl", [{"messages": messages_of(TALKS[i % 5])} for i in range(500)])
    want = (prepared(tmp_path, data) / "samples.tokens").read_bytes()
    out, seen, sample = tmp_path / "out", [], work.Rows._sample
    call = ["--data", str(data), "--tokenizer", str(tmp_path / "tok"), "--output", str(out)]

    def interrupted(self, *row):
        seen.append(row)
        if len(seen) == stop:
            raise KeyboardInterrupt
        return sample(self, *row)

    monkeypatch.setattr(work.Rows, "_sample", interrupted)
    stop = 300
    assert main(call) == 130 and not out.exists()
    assert "goes on where this one was" in capsys.readouterr().err
    # Bytes written since are cut off.
    with open(tmp_path / "out.part/samples.tokens.part", "ab") as file:
        file.write(b"abc")
    monkeypatch.setattr(command, "SAVED_EVERY", 0)
    stop = 300 + 100
    assert main([*call, "--num_proc", "1"]) == 130
    stop = 0
    assert main(call) == 0
    assert len(seen) == 300 + 100 + (500 - 256 - 64) and "goes on after 320 rows" in capsys.readouterr().out
    assert (out / "samples.tokens").read_bytes() == want and not (tmp_path / "out.part").exists()
    assert set(os.listdir(out)) == {"samples.tokens", "prepared.json", *json.loads((out / "prepared.json").read_text())["tokenizer"]["files"]}
    # Other data, or other settings, begin anew; what was there stays until the new is whole.
    before = (out / "prepared.json").read_bytes()
    stop = len(seen) + 200
    assert main([*call, "--overwrite"]) == 130
    assert (out / "prepared.json").read_bytes() == before
    seen.clear()
    stop = 0
    assert main([*call, "--overwrite", "--train_on", "all"]) == 0 and len(seen) == 500
    assert all(all(learnt) for _, learnt in samples_of(out))
    # Nobody's files are removed, and no two write one folder.
    (out / "mine").write_text("x")
    assert main([*call, "--overwrite"]) == 1 and "has files of others, which --overwrite would remove: mine" in capsys.readouterr().err
    (tmp_path / "x.part").mkdir()
    (tmp_path / "x.part/mine").write_text("x")
    assert main([*call[:-1], str(tmp_path / "x")]) == 1 and "x.part: is not empty" in capsys.readouterr().err
    job = command.Job(str(tmp_path / "y.part"), "key", 1)
    assert main([*call[:-1], str(tmp_path / "y")]) == 1 and "y.part: is being written by another process" in capsys.readouterr().err
    job.close()


def test_another_configuration_of_a_data_set_begins_anew(tmp_path, monkeypatch):
    tokenizer(tmp_path / "tok")
    (tmp_path / "data").mkdir()
    for name in ("en", "de"):
        write(tmp_path / f"data/{name}.jsonl", [{"text": f"{name} {i:03d}"} for i in range(600)])
    (tmp_path / "data/README.md").write_text("---\nconfigs:\n- config_name: en\n  data_files: en.jsonl\n- config_name: de\n  data_files: de.jsonl\n---\n")
    call = ["--data", str(tmp_path / "data"), "--tokenizer", str(tmp_path / "tok"), "--output", str(tmp_path / "out"), "--name"]
    add = command.Job.add

    def interrupted(self, *row):
        if self.done["rows"] > 256:
            raise KeyboardInterrupt
        add(self, *row)

    with monkeypatch.context() as patch:
        patch.setattr(command.Job, "add", interrupted)
        assert main([*call, "en"]) == 130
    assert main([*call, "de"]) == 0
    got = (tmp_path / "out/samples.tokens").read_bytes()
    assert main([*call[:-2], str(tmp_path / "whole"), "--name", "de"]) == 0
    assert got == (tmp_path / "whole/samples.tokens").read_bytes()


def test_only_what_this_call_put_aside_is_removed(tmp_path, monkeypatch, capsys):
    tokenizer(tmp_path / "tok", CHATML)
    data = write(tmp_path / "a.jsonl", [{"messages": messages_of(TALKS[0])}])
    out = tmp_path / "out"
    call = ["--data", str(data), "--tokenizer", str(tmp_path / "tok"), "--output", str(out)]
    (tmp_path / "out.before").mkdir()
    (tmp_path / "out.before/mine").write_text("x")
    assert main(call) == main([*call, "--overwrite"]) == 0
    assert (tmp_path / "out.before/mine").read_text() == "x"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.jsonl", "out", "out.before", "tok"]
    # Where the new folder cannot take its place, the old is there again, and the journal beside the new one.
    rename = os.rename

    def failing(source, target):
        if source.endswith(".part"):
            raise OSError(5, "failed", source)
        rename(source, target)

    before = (out / "prepared.json").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", failing)
        assert main([*call, "--overwrite", "--train_on", "all"]) == 1
    assert (out / "prepared.json").read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.jsonl", "out", "out.before", "out.part", "tok"]
    assert main([*call, "--overwrite", "--train_on", "all"]) == 0
    assert json.loads((out / "prepared.json").read_text())["train_on"] == "all"
    # An output that is a file is refused before anything is read.
    capsys.readouterr()
    (tmp_path / "file").write_text("x")
    assert main([*call[:1], str(tmp_path / "no.jsonl"), *call[2:-1], str(tmp_path / "file")]) == 1
    assert "file: must be a folder, is a file" in capsys.readouterr().err
    assert (tmp_path / "file").read_text() == "x" and not (tmp_path / "file.part").exists()


SLOW = """
import sys, time
from compact.prepare import command, work
sample, command.SAVED_EVERY = work.Rows._sample, 0
work.Rows._sample = lambda *row: (time.sleep(0.01), sample(*row))[1]
sys.exit(command.main(sys.argv[1:]))
"""


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="counts processes by Linux's /proc")
@pytest.mark.parametrize("how", ("SIGKILL", "SIGTERM"))
def test_a_call_that_is_ended_from_outside_goes_on(how, tmp_path):
    """Its processes end with it, and hold no lock."""
    tokenizer(tmp_path / "tok", CHATML)
    data = write(tmp_path / "a.jsonl", [{"messages": messages_of(TALKS[i % 5])} for i in range(2000)])
    want = (prepared(tmp_path, data) / "samples.tokens").read_bytes()
    call = ["--data", str(data), "--tokenizer", str(tmp_path / "tok"), "--output", str(tmp_path / "out"), "--num_proc", "2"]
    one = subprocess.Popen([sys.executable, "-c", SLOW, *call], stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        journal = tmp_path / "out.part/journal.json"
        until = time.monotonic() + 60
        while not (journal.exists() and json.loads(journal.read_text())["rows"]):
            assert time.monotonic() < until and one.poll() is None
            time.sleep(0.05)
        workers = [int(pid) for task in pathlib.Path(f"/proc/{one.pid}/task").iterdir() for pid in (task / "children").read_text().split()]
        assert len(workers) == 2
        one.send_signal(signal.Signals[how])
        said = one.communicate(timeout=30)[1]  # to the end: no process is left that has it open
        assert one.returncode == (-signal.SIGKILL if how == "SIGKILL" else 130)
        assert how == "SIGKILL" or "interrupted; the same call goes on" in said
        assert not (tmp_path / "out").exists() and journal.exists()
        assert main(call) == 0
        assert (tmp_path / "out/samples.tokens").read_bytes() == want
    finally:
        try:
            os.killpg(one.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def test_a_failure_of_the_system_keeps_what_is_done(tmp_path, monkeypatch, capsys):
    tokenizer(tmp_path / "tok", CHATML)
    data = write(tmp_path / "a.jsonl", [{"messages": messages_of(TALKS[i % 5])} for i in range(500)])
    want = (prepared(tmp_path, data) / "samples.tokens").read_bytes()
    lines = sources.FORMATS[".jsonl"]

    def failing(file):
        for number, row in enumerate(lines(file)):
            if number == 300:
                raise OSError(5, "Input/output error")
            yield row

    monkeypatch.setattr(command, "SAVED_EVERY", 0)
    call = ["--data", str(data), "--tokenizer", str(tmp_path / "tok"), "--output", str(tmp_path / "out")]
    with monkeypatch.context() as patch:
        patch.setitem(sources.FORMATS, ".jsonl", failing)
        assert main(call) == 1
    assert f"Input/output error: '{data}'" in capsys.readouterr().err
    assert main(call) == 0
    assert "goes on after 256 rows" in capsys.readouterr().out
    assert (tmp_path / "out/samples.tokens").read_bytes() == want


def test_it_runs_without_the_library(tmp_path):
    tokenizer(tmp_path / "tok", CHATML)
    data = write(tmp_path / "a.jsonl", [{"messages": messages_of(t)} for t in TALKS])
    folder = pathlib.Path(compact.prepare.__file__).parent
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"COMPACT_PYTHON_LIBRARY": "/none", "HF_DATASETS_CACHE": str(tmp_path / "c")}  # fmt: skip
    command = [sys.executable, str(folder), "--data", str(data), "--tokenizer", str(tmp_path / "tok"), "--output", str(tmp_path / "out")]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "5 samples of 5 rows (messages)" in done.stdout
    assert samples_of(tmp_path / "out") == samples_of(prepared(tmp_path, data))
