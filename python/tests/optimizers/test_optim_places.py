# SPDX-License-Identifier: Apache-2.0
"""Moments and masters in files: the bits of those in memory, none of the memory, through state dicts, copies and pickles."""
import copy
import gc
import mmap
import os
import pickle
import shutil
import signal
import subprocess
import sys

import pytest
import torch
from _device import DEVICE
from conftest import make

import compact

KINDS = {"adamw": compact.optim.AdamW, "muon": compact.optim.Muon}
ON_CPU = pytest.mark.skipif(DEVICE != "cpu", reason="disk is for a CPU")


def network(dtype=torch.float32):
    torch.manual_seed(3)
    layers = [torch.nn.Sequential(torch.nn.Linear(96, 96)) for _ in range(2)]
    return torch.nn.Sequential(*layers, torch.nn.Linear(96, 8)).to(dtype)


def steps(model, optimizer, begin, end):
    for i in range(begin, end):
        torch.manual_seed(i)
        model(torch.randn(4, 96, dtype=next(model.parameters()).dtype)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def mapped():
    """Bytes of this process that are mapped from files without a name."""
    with open("/proc/self/maps") as lines:
        spans = [line.split()[0].split("-") for line in lines if "(deleted)" in line and "rw-s" in line]
    return sum(int(end, 16) - int(begin, 16) for begin, end in spans)


@ON_CPU
@pytest.mark.parametrize("dtype, master", [(torch.float32, False), (torch.bfloat16, False), (torch.bfloat16, True)])
@pytest.mark.parametrize("held", ["f32", "bf16", "f8"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_bits(kind, held, dtype, master, tmp_path):
    def pair(place, like=None):
        model = like or network(dtype)
        folder = tmp_path if place else None
        return model, KINDS[kind](model, lr=1e-2, moments=held + place, master_weights=master, offload_folder=folder)

    memory, disk = pair(""), pair("+disk")
    before = mapped()
    steps(*memory, 0, 3)
    steps(*disk, 0, 3)
    assert mapped() - before >= sum(t.nbytes for s in memory[1].state.values() for k, t in s.items() if k != "step")
    assert not os.listdir(tmp_path)
    for again in ("state dict", "copy", "pickle"):
        if again == "state dict":
            saved = copy.deepcopy(disk[1].state_dict())
            disk = pair("+disk", disk[0])
            disk[1].load_state_dict(saved)
        else:
            disk = copy.deepcopy(disk) if again == "copy" else pickle.loads(pickle.dumps(disk))
        held_in_files = mapped()
        steps(*memory, 3, 5)
        steps(*disk, 3, 5)
        assert mapped() == held_in_files > before, again
        for a, b in zip(memory[0].parameters(), disk[0].parameters()):
            assert torch.equal(a, b), again


@pytest.mark.parametrize("device, place", [("cuda", "offload"), ("cpu", "disk"), ("cpu", "offload")])
def test_plans(device, place, tmp_path):
    """A step takes less by all of the state that is not on its device."""

    def plan(moments):
        settings = {"moments": moments, "offload_folder": tmp_path}
        gpu = {"gpu": "h100"} if device == "cuda" else {}
        made = compact.plan(compact.apply(make("llama")), (2, 16), policies="exact", device=device, optimizer=(compact.optim.AdamW, settings), **gpu)
        return made["rows"][0], str(made)

    (here, _), (there, text) = plan("f32"), plan("f32+" + place)
    moved = here["optimizer"] if (device, place) != ("cpu", "offload") else 0
    assert here["outside"] == 0 and there["outside"] == moved and there["optimizer"] == here["optimizer"] - moved
    if device == "cpu":
        assert here["peak"] - there["peak"] == moved
    assert ("outside: " in text) == (moved > 0)


@ON_CPU
def test_the_place_is_the_optimizers_own(tmp_path, monkeypatch):
    """A state is loaded to where this optimizer has its own, whatever it was saved from; and a folder is the one that was given, wherever the script goes."""
    (tmp_path / "state").mkdir()
    monkeypatch.chdir(tmp_path)
    model = network()
    memory, disk = (compact.optim.AdamW(model, moments="f32" + place, offload_folder="state") for place in ("", "+disk"))
    monkeypatch.chdir("/")
    steps(model, memory, 0, 1)
    saved, before = copy.deepcopy(memory.state_dict()), mapped()
    disk.load_state_dict(saved)
    assert mapped() > before and disk.param_groups[0]["moments"] == "f32+disk"
    steps(model, disk, 1, 2)
    memory.load_state_dict(disk.state_dict())
    held = mapped()
    del disk
    gc.collect()
    assert mapped() == before < held and memory.param_groups[0]["moments"] == "f32"


@ON_CPU
def test_a_fork_does_not_share_it(tmp_path):
    model = network()
    optimizer = compact.optim.AdamW(model, moments="f32+disk", offload_folder=tmp_path)
    steps(model, optimizer, 0, 1)
    moment = optimizer.state[model[-1].weight]["exp_avg"]
    before = moment.clone()
    child = os.fork()
    if child == 0:
        moment.zero_()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and torch.equal(moment, before)
    child = os.fork()
    if child == 0:  # what has come to its place since is not taken away with it
        others = [mmap.mmap(-1, mmap.PAGESIZE) for _ in range(256)]
        optimizer.state.clear()
        del moment
        gc.collect()
        os._exit(0 if all(page[0] == 0 for page in others) else 1)
    assert os.waitpid(child, 0)[1] == 0


@ON_CPU
def test_other_mappings_fail_as_before(tmp_path):
    """A file that is cut short while others have it mapped, beside mappings of the library."""
    code = """
import ctypes, mmap, os, sys, torch, compact
ours = [compact.base.library.ops.state_zeros([1 << 20], torch.float32, torch.device("cpu"), "disk", sys.argv[1]) for _ in range(2)]
file = os.open(sys.argv[1] + "/file", os.O_CREAT | os.O_RDWR)
os.ftruncate(file, 1 << 22)
theirs = mmap.mmap(file, 1 << 22)
more = compact.base.library.ops.state_zeros([1 << 20], torch.float32, torch.device("cpu"), "disk", sys.argv[1])
os.ftruncate(file, 0)
print(theirs[1 << 21])
"""
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGBUS and "optimizer" not in done.stderr


@ON_CPU
@pytest.mark.skipif(not shutil.which("gcc"), reason="makes a library by gcc")
def test_a_disk_that_lost_state_is_an_error(tmp_path):
    """The system tells it by msync alone, once; a state dict is no place for what was lost."""
    (tmp_path / "msync.c").write_text(
        "#include <errno.h>\n#include <stddef.h>\nint msync(void *p, size_t n, int f) { static int calls; errno = ENOSPC; return ++calls == 2 ? -1 : 0; }"
    )
    library = tmp_path / "msync.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, tmp_path / "msync.c"], check=True)
    script = f"""
import torch, compact
p = torch.nn.Parameter(torch.ones(300, 300))
optimizer = compact.optim.AdamW([p], moments="f32+disk", offload_folder={str(tmp_path)!r})
p.sum().backward()
optimizer.step()
for _ in range(2):
    try:
        optimizer.state_dict()
    except RuntimeError as error:
        print(str(error).splitlines()[0])
"""
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env={**os.environ, "LD_PRELOAD": str(library)})
    assert told.returncode == 0, told.stderr
    rule = "the disk did not take weights or optimizer state that lie in it (No space left on device), so they are lost"
    assert told.stdout.splitlines() == [f"{tmp_path}: {rule}; checkpoints are as they were"] * 2, told.stdout


def test_plans_need_no_folder():
    text = "slot * = keep\nmoment * = f32+disk\n"
    row = compact.plan(make("llama"), (2, 16), policies=[text], device="cpu", optimizer=compact.optim.AdamW)["rows"][0]
    assert row["optimizer"] == 0 < row["outside"]
    asked = {"moments": "f32+disk", "offload_folder": None}
    assert compact.plan(make("llama"), (2, 16), policies=["off"], device="cpu", optimizer=(compact.optim.AdamW, asked))["rows"][0]["outside"] > 0


@pytest.mark.parametrize("whole", [False, True])
def test_budgets_move_moments(whole):
    """Before anything is lost, and where it is allowed alone: served layers, and a network that is held as a whole."""
    asked = {"model": network() if whole else make("llama"), "device": "cpu", "optimizer": compact.optim.AdamW}
    asked |= {"batch": {"input": torch.randn(64, 96)}, "loss": torch.sum} if whole else {"batch": (2, 16)}
    least = min(compact.plan(**asked, policies=["exact", "recompute"][: 2 - whole])["rows"], key=lambda row: row["peak"])
    budget = least["peak"] - least["optimizer"] // 2
    with pytest.raises(torch.OutOfMemoryError, match="cannot be met"):
        compact.plan(**asked, policies=[], budget=budget)
    found = compact.plan(**asked, policies=[], budget=budget, allow="disk")
    row = found["rows"][-1]
    assert "moment * = f32+disk" in found["policy"] and row["lossless"] and row["outside"] > 0 and row["peak"] <= budget
    with pytest.raises(ValueError, match='"disk" for a CPU, and the plan is for cpu'):
        compact.plan(**asked, policies=[], budget=budget, allow="offload")


def test_weights_stay_where_they_are():
    for use in (lambda policy: compact.apply(make("llama"), policy=policy), lambda policy: compact.saved_tensors(policy)):
        with pytest.raises(ValueError, match="lines of a policy that begin with `weight` are for the program"):
            use("slot * = keep\nweight * = disk\n")


def test_refusals(tmp_path):
    p = [torch.nn.Parameter(torch.zeros(4, 4))]
    with pytest.raises(ValueError, match=r"moments must be one of f32, bf16, f8, alone or with \+offload or \+disk, is 'f32\+dsk'"):
        compact.optim.AdamW(p, moments="f32+dsk")
    with pytest.raises(ValueError, match="need offload_folder"):
        compact.optim.AdamW(p, moments="f32+disk")
    if DEVICE == "cpu":
        optimizer = compact.optim.AdamW(p, moments="f32+disk", offload_folder=tmp_path / "none")
        p[0].grad = torch.ones(4, 4)
        with pytest.raises(ValueError, match="none: no file can be made there"):
            optimizer.step()
        assert not p[0].any() and not optimizer.state
