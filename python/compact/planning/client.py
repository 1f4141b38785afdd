# SPDX-License-Identifier: Apache-2.0
"""The process that plans, as it is seen from the one that asks: started once, it forks for each plan."""
from __future__ import annotations

import atexit
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from typing import Any

from ..base.library import ops
from ..base.log import log

OF_SCRIPT = (
    "compact.plan: the model has classes of the script that runs, which another process cannot import: put them into a module of "
    "their own ({})"
)
_IDLE = 300.0  # seconds without a plan after which the server ends
_SAID_AFTER = 1.0  # seconds of a plan after which a line says that it runs
# Beginnings of environment variables that libraries read when they are loaded: a server that was
# started under other values of them is replaced. All others are set again for each plan.
_READ_BY_LIBRARIES = (
    "ATEN_", "COMPACT_", "DNNL_", "GOMP_", "HF_", "KMP_", "LD_", "MKL_", "OMP_", "ONEDNN_", "PYTHON", "PYTORCH_", "TORCH_", "TRANSFORMERS_",
)  # fmt: skip
_START = """
import sys
sys.path[:] = [path for path in sys.path if path]
from compact.plan_process.server import main
main(int(sys.argv[1]), float(sys.argv[2]))
"""


def _paths() -> list[str]:
    """sys.path in absolute paths, which hold in any working directory."""
    return [path or os.getcwd() for path in sys.path]


def _environment() -> dict[str, str]:
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(_paths()),
        "PYTHONSAFEPATH": "1",  # modules are not searched for in the working directory unless the caller's paths say so
        "CUDA_VISIBLE_DEVICES": "",  # plans need none
        "COMPACT_BF16_PRODUCTS": ops.bf16_products(),  # as they are made here now
        "OPENBLAS_NUM_THREADS": "1",  # NumPy's starts threads when it is loaded, which do not outlive a fork
    }


def _started_under() -> tuple:
    read = {key: value for key, value in os.environ.items() if key.startswith(_READ_BY_LIBRARIES)}
    read["COMPACT_BF16_PRODUCTS"] = ops.bf16_products()
    return sys.executable, tuple(sys.path), read


class _Server:
    """A process that has imported what plans need. It ends with this one, or when it has had nothing to do for a while."""

    def __init__(self):
        self.started_under = _started_under()
        self._errors, self._said, self._closing = tempfile.TemporaryFile(), "", threading.Lock()
        # Messages keep their bounds. Closed in this process, the socket ends the server.
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, str(theirs.fileno()), str(_IDLE)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                env=_environment(),
                start_new_session=True,  # an interrupt from the keyboard is for this process alone
            )

    def ask(self, asked: bytes, modules: list[str], subject: str, fresh: bool) -> dict | None:
        """The answer of a process that it forks, given what it has imported; None: the server is gone."""
        answers, theirs = socket.socketpair()
        with answers, tempfile.TemporaryFile() as request, tempfile.TemporaryFile() as errors:
            request.write(asked)
            request.flush()
            with theirs:
                try:
                    files = [theirs.fileno(), request.fileno(), errors.fileno()]
                    socket.send_fds(self._control, [json.dumps(modules).encode()], files)
                except OSError:
                    return None
            try:
                answer = _received(answers, subject, fresh)
            finally:
                answers.shutdown(socket.SHUT_RDWR)  # without anyone to answer, that process ends
            if not answer:
                return None
            found = pickle.loads(answer)
            if "ended" in found:
                raise RuntimeError(f"compact.plan: the process that plans ended with {found['ended']}: {_text(errors)}")
            return found

    def close(self) -> str:
        """Ends it after the plans that run; what it said on its standard error."""
        with self._closing:  # threads may find at once that it is gone
            self._control.close()
            self._process.wait()
            if not self._errors.closed:
                self._said = _text(self._errors)
                self._errors.close()
            return self._said

    def kill(self) -> None:
        """Ends it and the plans that run."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.close()

    def leave(self) -> None:
        """In a process that was forked from the one that it belongs to."""
        self._control.close()
        self._errors.close()
        self._process.returncode = 0  # not this process's child


def _received(answers: socket.socket, subject: str, fresh: bool) -> bytes:
    answer = b""
    answers.settimeout(_SAID_AFTER)
    while True:
        try:
            part = answers.recv(1 << 16)
        except ConnectionResetError:
            return b""
        except TimeoutError:
            log.warning(f"compact: planning {subject}" + ("; the first plan of a process takes some seconds for imports" if fresh else ""))
            answers.settimeout(None)
            continue
        if not part:
            return answer
        answer += part


def _text(errors: Any) -> str:
    errors.seek(0)
    return errors.read().decode(errors="replace").strip()[-4000:]


_lock = threading.Lock()
_server: _Server | None = None


def _current() -> tuple[_Server, bool]:
    """The server, and whether it was started just now."""
    global _server
    with _lock:
        if _server is not None and _server.started_under == _started_under():
            return _server, False
        old, _server = _server, _Server()
        new = _server
    if old is not None:
        old.close()
    return new, True


def _gone(server: _Server) -> str:
    global _server
    with _lock:
        if _server is server:
            _server = None
    return server.close()


def _end() -> None:
    if _server is not None:
        _server.kill()


def _forget() -> None:
    global _lock, _server
    if _server is not None:
        _server.leave()
    _lock, _server = threading.Lock(), None


atexit.register(_end)
os.register_at_fork(after_in_child=_forget)


def ask(asked: dict, modules: list[str], subject: str) -> dict:
    """The answer of a process that plans with the paths, folder and environment of this one.

    modules: of models, which it needs. subject: what is planned, for the line that says so. Throws
    ValueError where it says that this cannot be planned, RuntimeError where it ended instead.
    """
    try:
        folder = os.getcwd()
    except FileNotFoundError:
        folder = None
    request = pickle.dumps({"folder": folder, "path": _paths(), "environment": _environment()}) + pickle.dumps(asked)
    while True:
        server, fresh = _current()
        found = server.ask(request, modules, subject, fresh)
        if found is not None:
            break
        ended = _gone(server)
        if fresh:  # another one would fare no better
            raise RuntimeError(f"compact.plan: the process that plans could not be started or was killed: {ended}")
    if "error" in found:
        error = ValueError(found["error"])
        if "trace" in found and hasattr(error, "add_note"):
            error.add_note(found["trace"])
        raise error
    return found
