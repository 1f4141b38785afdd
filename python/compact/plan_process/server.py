# SPDX-License-Identifier: Apache-2.0
"""The process that forks for each plan. It imports what plans need and computes nothing: threads that
a library starts for its first large product would be missing in the processes that are forked."""
from __future__ import annotations

import gc
import importlib
import json
import os
import pickle
import select
import socket
import sys
import threading
import traceback

from . import child

_PACKAGES = ("peft", "transformers")  # it imports their modules for all plans to come


def main(control: int, idle: float) -> None:
    """Forks one process per request on `control`; returns when the socket closes or after `idle` seconds without requests."""
    gc.collect()
    gc.freeze()  # else the first collection in each plan would copy all of it
    with socket.socket(fileno=control) as asking:
        _serve(asking, idle)


def _serve(asking: socket.socket, idle: float) -> None:
    plans: dict[int, tuple[int, socket.socket]] = {}  # by a pipe that closes with the process: it, and who is answered
    listening = [asking]
    while listening or plans:
        ready, _, _ = select.select([*listening, *plans], [], [], None if plans else idle)
        if not ready:
            return
        for each in ready:
            if each is not asking:
                os.close(each)
                _ended(*plans.pop(each))
                continue
            message, files, _, _ = socket.recv_fds(asking, 1 << 20, 3)
            if not message:
                listening = []
                continue
            _import(json.loads(message))
            read, write = os.pipe()
            pid = os.fork()
            if pid == 0:
                asking.close()
                _plan(*files)
            os.close(write)
            plans[read] = pid, socket.socket(fileno=files[0])
            for file in files[1:]:
                os.close(file)


def _import(modules: list[str]) -> None:
    for module in modules:
        if module.split(".")[0] in _PACKAGES:
            try:
                importlib.import_module(module)
            except Exception:  # the plan says it
                pass


def _ended(pid: int, answers: socket.socket) -> None:
    _, status = os.waitpid(pid, 0)
    with answers:
        try:
            if status != 0:
                answers.sendall(pickle.dumps({"ended": os.waitstatus_to_exitcode(status)}))
            answers.shutdown(socket.SHUT_RDWR)
        except OSError:  # the client is gone
            pass


def _plan(answers: int, request: int, errors: int) -> None:
    """In the process that was forked: answers and ends it."""
    code = 1
    try:
        os.dup2(errors, 2)
        answering = socket.socket(fileno=answers)
        threading.Thread(target=_end_with, args=(answering,), daemon=True).start()
        with open(request, "rb") as file:
            file.seek(0)
            _become(pickle.load(file))
            reply = child.reply(file)
        answering.sendall(pickle.dumps(reply))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _end_with(answering: socket.socket) -> None:
    """Ends this process as soon as its client is gone."""
    answering.recv(1)
    os._exit(1)


def _become(caller: dict) -> None:
    """Takes the folder, paths and environment of who asks."""
    os.environ.clear()
    os.environ.update(caller["environment"])
    if caller["folder"] is not None:
        os.chdir(caller["folder"])
    sys.path[:] = caller["path"]
    importlib.invalidate_caches()
