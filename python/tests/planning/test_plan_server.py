# SPDX-License-Identifier: Apache-2.0
"""The process that plans come from: one for many, whatever becomes of it, of a plan, or of who asks."""
import contextlib
import os
import pathlib
import signal
import threading
import time

from _threads import in_threads
from conftest import make
import pytest
import torch
from torch import nn

import compact
from compact.planning import client


class Named(nn.Module):
    """A model of a class that the process which plans imports; its loss is that of a llama."""

    def __init__(self):
        super().__init__()
        self.model = make("llama")

    def forward(self, **given):
        return self.model(**given)


class Telling(Named):
    """Refuses to be planned, and says under what."""

    def forward(self, **given):
        raise ValueError(f"{os.environ.get('OF_A_TEST')} {torch.get_num_threads()} {os.getcwd()}")


class Killed(Named):
    def forward(self, **given):
        print("the last words", file=__import__("sys").stderr, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


class Waiting(Named):
    """Says which process plans it, in a file, and goes on for as long as anybody wants."""

    def __init__(self, file):
        super().__init__()
        self.file = str(file)

    def forward(self, **given):
        path = pathlib.Path(self.file + ".new")
        path.write_text(str(os.getpid()))
        path.rename(self.file)
        while True:
            time.sleep(1)


class Computing(Named):
    """Computes on the CPU with all threads, as a model may that makes tables of positions."""

    def forward(self, **given):
        a = torch.ones(512, 512)
        assert float((a @ a).sum()) == 512**3 and float(torch.ones(1 << 22).sum()) == 1 << 22
        assert threads_of(os.getpid()) > threading.active_count(), "no thread of OpenMP's was started"
        return super().forward(**given)


def peak(model):
    return compact.plan(model, (2, 32) if not isinstance(model, Named) else batch(), policies=("plain",))["rows"][0]["peak"]


def batch():
    ids = torch.zeros(2, 32, dtype=torch.long)
    return {"input_ids": ids, "labels": ids}


def server():
    return client._server._process.pid


def end_server():
    if client._server is not None:
        client._server.kill()


def threads_of(pid):
    return len(os.listdir(f"/proc/{pid}/task"))


def runs(pid):
    """Whether a process is there and not only waits to be reaped."""
    with contextlib.suppress(OSError):
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    return False


def until(true):
    while not true():  # a test that waits in vain is ended by ctest
        time.sleep(0.01)


def forked(run):
    """Runs it in a process that is forked from this one; its status, which is what `run` returns, or 99."""
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            code = run()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_one_process_serves_many_plans():
    first = peak(make("llama"))
    pid = server()
    assert first == peak(make("llama")) and peak(make("gpt2")) != first
    assert server() == pid and runs(pid) and pid != os.getpid()
    assert threads_of(pid) == 1, "processes that are forked would miss the others"


def test_a_process_that_is_forked_computes_with_threads():
    torch.set_num_threads(2)
    assert peak(Computing()) == peak(Computing()) == peak(Named())


def test_a_plan_that_is_killed():
    peak(make("llama"))
    pid = server()
    with pytest.raises(RuntimeError, match="ended with -9: the last words"):
        peak(Killed())
    assert server() == pid and peak(make("llama")) > 0


@pytest.fixture
def interruptible():
    """SIGINT interrupts, also where pytest was started with it ignored, as by a shell's `&`."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_plan_that_is_interrupted(tmp_path, interruptible):
    peak(make("llama"))
    pid, file = server(), tmp_path / "pid"

    def interrupt():
        until(file.exists)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        peak(Waiting(file))
    thread.join()
    until(lambda: not runs(int(file.read_text())))
    assert peak(make("llama")) > 0 and server() == pid


def test_a_process_that_is_forked_from_the_one_that_asks():
    model = make("llama")
    wanted, pid = peak(model), server()
    assert forked(lambda: int(client._server is not None or peak(model) != wanted or server() == pid)) == 0
    assert peak(model) == wanted and server() == pid


def test_nothing_outlives_who_asks(tmp_path):
    model, pids = Waiting(tmp_path / "pid"), tmp_path / "server"

    def asks():
        thread = threading.Thread(target=peak, args=(model,), daemon=True)
        thread.start()
        until((tmp_path / "pid").exists)
        pids.write_text(str(server()))
        os.kill(os.getpid(), signal.SIGKILL)

    assert forked(asks) == -signal.SIGKILL
    until(lambda: not runs(int((tmp_path / "pid").read_text())) and not runs(int(pids.read_text())))


def test_two_threads_replace_a_server_that_was_killed():
    wanted = [peak(make("llama")), peak(make("gpt2"))]
    pid = server()
    os.kill(pid, signal.SIGKILL)

    found = in_threads(lambda name: peak(make(name)), ("llama", "gpt2"))
    assert found == wanted and server() != pid and not runs(pid)


def test_a_line_says_that_a_plan_runs(monkeypatch, caplog):
    peak(make("llama"))
    assert "planning" not in caplog.text or "imports" in caplog.text
    monkeypatch.setattr(client, "_SAID_AFTER", 1e-3)
    caplog.clear()
    peak(make("llama"))
    assert caplog.messages == ["compact: planning LlamaForCausalLM"]


def test_what_was_changed_between_plans(tmp_path, monkeypatch):
    peak(make("llama"))
    pid, before = server(), torch.get_num_threads()
    monkeypatch.setenv("OF_A_TEST", "set later")
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(before + 1)
    with pytest.raises(ValueError, match=f"set later {before + 1} {tmp_path}$"):
        peak(Telling())
    assert server() == pid
    monkeypatch.setenv("ONEDNN_VERBOSE", "0")  # is read when oneDNN is loaded
    assert peak(make("llama")) > 0
    assert server() != pid and not runs(pid)


def test_a_server_that_cannot_start(monkeypatch):
    end_server()
    monkeypatch.setattr(client, "_START", "raise ImportError('no torch here')")
    with pytest.raises(RuntimeError, match="(?s)could not be started or was killed: .*no torch here"):
        peak(make("llama"))


def test_a_server_without_work_ends(monkeypatch):
    end_server()
    monkeypatch.setattr(client, "_IDLE", 0.2)
    wanted = peak(make("llama"))
    assert client._server._process.wait(60) == 0
    monkeypatch.undo()
    assert peak(make("llama")) == wanted
