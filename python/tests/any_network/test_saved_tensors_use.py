# SPDX-License-Identifier: Apache-2.0
"""Where saved_tensors() may be entered, what it refuses, and what it leaves alone."""
import contextlib
import inspect
import threading
import warnings

from _device import cpu_only
from _scopes import EIGHT, hooks_in_force, net, nothing_is_left, same, step  # noqa: F401 - a fixture for all tests
from _threads import in_threads
import pytest
import torch
from torch import nn

import compact


# ---- Hooks of others, errors, threads.


def test_hooks_of_others_are_refused():
    with torch.autograd.graph.save_on_cpu():
        with pytest.raises(RuntimeError, match="other hooks of saved tensors"):
            with compact.saved_tensors("off"):
                pass
    with compact.saved_tensors("off") as outer:
        with pytest.raises(RuntimeError, match="compact.saved_tensors is in force"):
            with compact.saved_tensors("off"):
                pass
        with pytest.raises(RuntimeError, match="compact.saved_tensors is in force"):
            outer.__enter__()
        assert hooks_in_force()[0] is outer._pack
    with torch.autograd.graph.disable_saved_tensors_hooks("not now"):
        with pytest.raises(RuntimeError, match="not now"):
            with outer:
                pass
    with outer:  # the refusal left it as it was
        pass


def test_hooks_that_are_left_are_noticed():
    theirs = torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach(), lambda t: t)
    saved = compact.saved_tensors("off")
    with pytest.raises(RuntimeError, match="replaced"):
        with saved:
            theirs.__enter__()
    assert hooks_in_force()[0] is theirs.pack_hook
    theirs.__exit__()
    with pytest.raises(RuntimeError, match="replaced"):
        with saved:
            torch._C._autograd._pop_saved_tensors_default_hooks()
    with pytest.raises(KeyError):  # the error of the program is the one to be seen
        with saved:
            theirs.__enter__()
            raise KeyError
    theirs.__exit__()
    with saved:
        with theirs:  # put back: as checkpoints do
            pass


@cpu_only  # an index out of range ends a process's use of a GPU
def test_errors_leave_hooks_clean():
    model, ids = net()
    wanted = step(model, ids)
    saved = compact.saved_tensors("off", model=model)
    with pytest.raises(KeyError), saved:
        model(ids)
        raise KeyError
    with pytest.raises(IndexError), saved:
        model(ids + 300)  # inside of an operation
    assert hooks_in_force() is None
    assert same(step(model, ids, saved), wanted)
    assert any(t.name == "up.addmm.input1" for t in saved.report())


def test_wrong_arguments_are_value_errors():
    for wrong in ("no-such-preset", "slot * = quantise", "slot * = quantize:bits=3", "nonsense = 1"):
        with pytest.raises(ValueError):
            compact.saved_tensors(wrong)
    with pytest.raises(ValueError, match="least_elements"):
        compact.saved_tensors("off", least_elements=-1)
    with pytest.raises(ValueError, match="Module"):
        compact.saved_tensors("off", model={})
    with pytest.raises(TypeError):
        compact.saved_tensors()
    for treatment in ("recompute", "quantize:bits=4,along=last"):
        with pytest.raises(ValueError, match="slot"):
            with compact.saved_tensors(f"slot * = {treatment}", least_elements=1):
                torch.randn(8, requires_grad=True).exp()


def test_policies_are_presets_paths_and_texts(tmp_path):
    file = tmp_path / "mine"
    file.write_text("slot *.gelu.* = quantize:bits=2\n")
    for policy in (file, str(file), "slot *.gelu.* = quantize:bits=2"):
        with compact.saved_tensors(policy, least_elements=1) as saved:
            nn.functional.gelu(torch.randn(64, requires_grad=True) * 1).sin()
        # The sine asks for the tensor itself.
        assert [t.treatment for t in saved.report()] == ["quantize:bits=2", "keep"]


def test_patterns_that_match_nothing_are_told_once():
    saved = compact.saved_tensors("slot *.exp.* = keep\nslot *.esp.* = quantize:bits=4", least_elements=1)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with saved, torch.no_grad():
            pass  # nothing was saved yet
        for _ in range(2):
            with saved:
                torch.ones(8, requires_grad=True).exp()
    assert len(told) == 1 and "esp" in str(told[0].message)
    assert told[0].filename == __file__


@cpu_only  # a default device is one thread's
def test_threads_have_scopes_of_their_own():
    scopes = [compact.saved_tensors("off", least_elements=1) for _ in range(4)]

    def train(i):
        x = torch.randn(64, 64, generator=torch.Generator().manual_seed(i)).requires_grad_()
        for _ in range(50):
            x.grad = None
            with scopes[i]:
                y = (x * (i + 1)).sin().exp().sum()
            y.backward()
            wanted = (i + 1) * (x * (i + 1)).cos() * (x * (i + 1)).sin().exp()
            assert torch.allclose(x.grad, wanted, atol=1e-5)
            assert [t.name for t in scopes[i].report()] == ["~1.sin.input", "~2.exp.result"]

    in_threads(train, range(4))
    with scopes[0]:  # another thread's operations are not its own
        other = threading.Thread(target=lambda: torch.ones(9, requires_grad=True).exp())
        other.start()
        other.join()
    assert len(scopes[0].report()) == 0


def test_a_scope_in_use_by_another_thread_is_refused():
    saved, seen = compact.saved_tensors("off"), []

    def use(what):
        try:
            what()
        except RuntimeError as error:
            seen.append(str(error))

    with saved:
        for what in (saved.__enter__, lambda: saved.__exit__(None, None, None)):
            other = threading.Thread(target=use, args=(what,))
            other.start()
            other.join()
        assert hooks_in_force()[0] is saved._pack
    assert "in force already" in seen[0] and "thread that it began on" in seen[1]


# ---- What wraps tensors.


def test_fake_tensors_are_kept_as_they_are():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        w = nn.Parameter(torch.randn(64, 64))
        with compact.saved_tensors(EIGHT, least_elements=1) as saved:
            y = (torch.randn(64, 64) @ w).relu().sum()
        y.backward()
        assert w.grad.shape == w.shape
    assert saved.stored == 0


def test_subclasses_are_kept_as_they_are():
    class Own(torch.Tensor):
        pass

    t = torch.randn(64, 64).as_subclass(Own)
    w = nn.Parameter(torch.randn(64, 64))
    with compact.saved_tensors(EIGHT, least_elements=1) as saved:
        y = (t @ w).sum()
    y.backward()
    wanted = t.as_subclass(torch.Tensor).sum(0)[:, None].expand(64, 64)
    assert torch.allclose(w.grad.as_subclass(torch.Tensor), wanted, atol=1e-4)
    assert all(t.parameter for t in saved.report())


def test_vmap_inside():
    w, x = nn.Parameter(torch.randn(64, 64)), torch.randn(16, 64)

    def run(scope):
        w.grad = None
        with scope:
            y = torch.vmap(lambda row: torch.tanh(row @ w))(x).sum()
        y.backward()
        return w.grad

    wanted = run(contextlib.nullcontext())
    assert torch.equal(run(compact.saved_tensors("off", least_elements=1)), wanted)


def test_distributed_tensors_are_kept_as_they_are(tmp_path):
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        w, x = torch.randn(64, 64), torch.randn(32, 64)
        grads = []
        for scope in (contextlib.nullcontext(), compact.saved_tensors(EIGHT, least_elements=1)):
            p = nn.Parameter(distribute_tensor(w, mesh, [Replicate()]))
            with scope:
                y = torch.tanh(distribute_tensor(x, mesh, [Replicate()]) @ p).sum()
            y.backward()
            assert isinstance(p.grad, DTensor)
            grads.append(p.grad.to_local())
        assert torch.equal(*grads)
    finally:
        dist.destroy_process_group()


def test_compiled_code_inside():
    model, x = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64)), torch.randn(32, 64)
    compiled = torch.compile(model, backend="aot_eager")

    def run(scope):
        model.zero_grad()
        with scope:
            y = compiled(x).square().sum()
        y.backward()
        return [p.grad.clone() for p in model.parameters()]

    wanted = run(contextlib.nullcontext())
    saved = compact.saved_tensors("off", model=compiled)
    assert all(torch.equal(a, b) for a, b in zip(run(saved), wanted))
    # The tensors that the backward pass of a compiled graph reads are not known.
    saved = compact.saved_tensors(EIGHT, model=compiled)
    assert all(torch.equal(a, b) for a, b in zip(run(saved), wanted))
    assert saved.stored == saved.bytes == sum(saved.report().exact_for.values())


def test_policies_that_do_nothing_are_told():
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    for rows, count in ((64, 0), (4096, 1)):  # there is nothing to gain of a few bytes
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            saved = compact.saved_tensors("exact")
            for _ in range(2):
                with saved:
                    net(torch.ones(rows, 64, requires_grad=True)).sum()
        assert [str(w.message).count("leaves all that this network saves as it is. Nothing of it can be rebuilt") for w in told] == [1] * count


def test_warnings_name_the_line_of_the_user():
    """Through torch's modules and contextlib, too; and once for all threads of a model."""
    net, x = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)), torch.ones(64, 64, requires_grad=True)
    compact.apply(net, "slot nothing.* = quantize:bits=8\nslot *.result = keep\n")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        line = inspect.currentframe().f_lineno + 1
        net(x).sum()
        in_threads(net, [x, x])
    assert [(w.filename, w.lineno) for w in told] == [(__file__, line)] and "`nothing.*`" in str(told[0].message)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with compact.saved_tensors("recompute"):
            net[0](x)
    assert [w.filename for w in told] == [__file__]


@pytest.mark.filterwarnings("error")
def test_a_policy_that_only_rebuilds():
    net = nn.Sequential(nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 64))
    for policy in ("slot role:cheap = recompute", "slot *.input1 = keep\nslot role:cheap = recompute"):
        with compact.saved_tensors(policy, model=net, least_elements=1) as saved:
            net(torch.ones(64, 64)).sum().backward()
        assert any(t.treatment == "recompute" for t in saved.report())


def test_wrong_arguments():
    for least in (None, 1.5, -1, 2**80, True):
        with pytest.raises(ValueError, match="least_elements must be a number of elements"):
            compact.saved_tensors("exact", least_elements=least)
    with pytest.raises(ValueError, match="lossless must be True, False or None, is 'no'"):
        compact.saved_tensors("exact", lossless="no")
    with pytest.warns(UserWarning, match="preset recompute is for layers of compact.apply. .exact. rebuilds"):
        with compact.saved_tensors("recompute"):
            nn.Linear(64, 64)(torch.ones(64, 64))


def test_lazy_modules_run_for_the_first_time():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(2))
    with compact.saved_tensors(EIGHT, model=net, least_elements=16) as saved:
        net(torch.randn(2, 3, 8, 8)).sum().backward()
    assert net[3].weight.grad is not None and any("quantize" in t.treatment for t in saved.report())
    with saved:
        net(torch.randn(2, 3, 8, 8)).sum().backward()
    assert "3.addmm.input1" in {t.name for t in saved.report()}  # by then they have names
