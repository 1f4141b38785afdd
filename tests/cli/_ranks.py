# SPDX-License-Identifier: Apache-2.0
"""Several processes of one run, started by hand or by torchrun."""
import functools
import os
import resource
import signal
import socket
import subprocess
import sys
import time

from _program import PROGRAM, environment


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def rank_environment(rank, size, port, **more):
    return environment() | {
        "OMP_NUM_THREADS": "1",
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    } | {name: str(value) for name, value in more.items()}


def limit_files(size):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


class Ranks:
    """`compact train` on `size` ranks, with flags of a rank's own; each in a folder of its own where
    `cwds` names them, with a link `m` there to what `links` says; and no file of a rank larger than
    `limits` says, as on a disk that is full."""

    def __init__(self, flags, size=2, own_flags=None, cwds=None, links=None, folder=None, limits=None,
                 command="train"):
        port = free_port()
        self.all = []
        for name, target in (links or {}).items():
            (folder / name).mkdir()
            (folder / name / "m").symlink_to(target)
        for rank in range(size):
            own = (own_flags or {}).get(rank, [])
            limit = (limits or {}).get(rank)
            full = limit and functools.partial(limit_files, limit)
            self.all.append(subprocess.Popen(
                [PROGRAM, command, *map(str, [*flags, *own])], env=rank_environment(rank, size, port),
                text=True, cwd=(cwds or {}).get(rank), preexec_fn=full, stdout=subprocess.PIPE, stderr=subprocess.PIPE))  # fmt: skip

    def finish(self, seconds=120):
        """(exit code, output, errors) of every rank."""
        end = time.monotonic() + seconds
        done = []
        for process in self.all:
            try:
                out, errors = process.communicate(timeout=max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                self.kill()
                raise
            done.append((process.returncode, out, errors))
        return done

    def kill(self):
        for process in self.all:
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.communicate()


def torchrun(flags, size=2, restarts=0):
    """torchrun of this Python, as a process that has begun."""
    command = [sys.executable, "-m", "torch.distributed.run", "--no-python", f"--nproc-per-node={size}",
               f"--master-port={free_port()}", f"--max-restarts={restarts}", str(PROGRAM), "train"]  # fmt: skip
    env = environment() | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen([*command, *map(str, flags)], env=env, text=True, start_new_session=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip


def children_of(pid):
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat") as stat:
                text = stat.read()
        except OSError:
            continue
        if int(text.rsplit(")", 1)[1].split()[1]) == pid:
            found.append(int(entry))
    return sorted(found)
