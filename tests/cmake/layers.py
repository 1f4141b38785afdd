#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""cmake/layers.py finds each kind of violation, and finds none in a tree without one."""
import importlib.util
import pathlib
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
spec = importlib.util.spec_from_file_location("layers", ROOT / "cmake/layers.py")
layers = importlib.util.module_from_spec(spec)
spec.loader.exec_module(layers)

GOOD = {
    "cmake/backends.cmake": "set(COMPACT_BACKENDS cpu)  # not gpu\nlist(PREPEND COMPACT_BACKENDS cuda)\n",
    "compact/base/check.h": "#include <string>\n",
    "compact/kernels/cpu/cpu.cpp": '#include "compact/kernels/cpu/simd.h"\nextern const Backend cpu_backend = {};\n',
    "compact/kernels/cpu/simd.h": '#include "compact/kernels/kernels.h"\n',
    "compact/kernels/kernels.h": '#include "compact/base/check.h"\n',
    "compact/kernels/cuda/cuda.cu": "extern const Backend cuda_backend = {};\n",
    "compact/codecs/srht.cpp": "#include <ATen/core/Tensor.h>\nextern const ProjectionInfo srht = {};\n",
    "compact/codecs/table.cpp": "extern const ProjectionInfo srht;\nall[] = {&srht};\n",
    "compact/ops/stages/linear.cpp": "#include <torch/csrc/autograd/custom_function.h>\n",
    "compact/data/text/lines.cpp": '#include "compact/data/files/reader.h"\n',
    "python/compact/__init__.py": "from .layers.apply import apply\n",
    "python/compact/base/library.py": "import torch\n",
    "python/compact/base/torch_private.py": "from torch._C import _autograd\nversion_of = attrgetter('_version')\n",
    "python/compact/layers/apply.py": "from ..base import library\nfrom . import masks\n",
    "python/compact/layers/masks.py": "from ..base.library import ops\n",
    "python/compact/plan_process/child.py": "from .. import apply\nfrom ..layers import masks\n",
    "compact/cli/main.cpp": '#include "compact/train/loop.h"\n',
}
BAD = [
    ("compact/base/x.h", '#include "compact/kernels/kernels.h"\n', "base must not include kernels"),
    ("compact/base/x.h", "#include <ATen/core/Tensor.h>\n", "base may include nothing of torch"),
    ("compact/kernels/x.h", "# include <c10/util/BFloat16.h>\n", "may include nothing of torch"),
    ("compact/codecs/x.cpp", '#include "compact/ops/stages/linear.h"\n', "codecs must not include ops"),
    ("compact/data/text/x.cpp", "#include <torch/csrc/autograd/custom_function.h>\n", "ATen and c10"),
    ("compact/io/x.cpp", '#include "compact/data/text/block_dataset.h"\n', "io must not include data"),
    ("compact/optim/x.cpp", '#include "compact/ops/stages/linear.h"\n', "optim must not include ops"),
    ("compact/plan/x.cpp", '#include "compact/io/json_file.h"\n', "plan must not include io"),
    ("compact/train/x.cpp", '#include "compact/cli/args.h"\n', "train must not include cli"),
    ("compact/codecs/x.cpp", '#include "compact/kernels/cpu/simd.h"\n', "for kernels/ only"),
    ("compact/ops/stages/x.cpp", '#include "linear.h"\n', 'include "compact/..."'),
    ("compact/train/x.cpp", '#include "compact/apps/generate.h"\n', "train must not include apps"),
    ("compact/report/x.cpp", '#include "compact/tasks/task.h"\n', "report must not include tasks"),
    ("compact/extra/x.cpp", "\n", "is in no layer"),
    ("compact/data/x.cpp", "\n", "is in no room"),
    ("compact/data/files/x.cpp", '#include "compact/data/text/lines.h"\n', "data/files must not include data/text"),
    ("compact/ops/x.cpp", "\n", "is in no room"),
    ("compact/ops/segments/x.h", '#include "compact/ops/stages/stages.h"\n', "ops/segments must not include ops/stages"),
    ("tests/ops/x_test.cpp", "#include <torch/torch.h>\n", "not torch/torch.h"),
    ("compact/kernels/gpu/gpu.cpp", "extern const Backend gpu_backend = {};\n", "not in COMPACT_BACKENDS"),
    ("compact/kernels/cpu/cpu.cpp", "// extern const Backend cpu_backend\n", "defines no"),
    ("compact/kernels/cuda/cuda.cu", None, "has no sources"),
    ("compact/codecs/x.cpp", "extern const ProjectionInfo lost{};\n", "`lost` is in no table"),
    ("compact/codecs/table.cpp", "extern const ProjectionInfo srht;\n// &srht\n", "`srht` is in no"),
    ("compact/models/gpt/x.cpp", "extern const FamilyInfo lost = {};\n", "`lost` is in no table"),
    ("compact/models/gpt/x.h", '#include "compact/models/llama/llama.h"\n', "models/gpt must not include models/llama"),
    ("compact/plan/meta/x.cpp", '#include "compact/plan/search.h"\n', "plan/meta must not include plan/"),
    ("compact/cli/x.cpp", '#include "compact/compact.h"\n', "cli must not include compact.h"),
    ("compact/compact.h", '#include "compact/ops/segments/node_impl.h"\n', "is not for programs"),
    ("compact/ops/stages/x.cpp", '#include "compact/ops/segments/node_impl.h"\n', "for its own folder alone"),
    ("compact/models/x.h", '#include "compact/models/llama/llama.h"\n', "models/ must not include models/llama"),
    ("compact/base/x.h", "// Of a kernel.\nint x;\n", "x.h:1: a comment must not begin with `Of`"),
    ("compact/base/x.h", "int x;\n// What is held.\n", "x.h:2: a comment must not begin with `What`"),
    ("compact/kernels/cuda/x.cu", "//  Those of a GPU.\n", "x.cu:1: a comment must not begin with `Those`"),
    ("python/tests/x.py", "# Of a layer.\n", "x.py:1: a comment must not begin"),
    ("scripts/x.sh", "f() {\n# Whose turn it is.\n}\n", "x.sh:2: a comment must not begin with `Whose`"),
    ("cmake/x.cmake", "# What a program links.\n", "x.cmake:1: a comment must not begin with `What`"),
    ("python/compact/extra/x.py", "\n", "is in no room"),
    ("python/compact/base/x.py", "from ..layers import masks\n", "base/x.py:1: base must not import layers/masks.py"),
    ("python/compact/base/x.py", "def f():\n    import compact.layers.masks\n", "x.py:2: base must not import layers/masks.py"),
    ("python/compact/layers/x.py", "from compact import apply\n", "layers must not import __init__.py"),
    ("python/compact/hf.py", "from .plan_process.child import reply\n", "the package must not import plan_process/child.py"),
    (
        "python/compact/layers/masks.py",
        "def f():\n    from .apply import apply\n",
        "a circle of imports: layers/apply.py -> layers/masks.py -> layers/apply.py",
    ),
    ("python/compact/layers/x.py", "import torch._dynamo\n", "torch._dynamo belongs in base/torch_private.py"),
    ("python/compact/layers/x.py", "hooks = torch._C._autograd\n", "belongs in base/torch_private.py"),
    ("python/compact/layers/x.py", "def f(t):\n    t._version\n", "x.py:2: t._version belongs in the files of"),
    ("python/compact/layers/x.py", "from transformers.x import _y\n", "belongs in base/transformers_private.py"),
    ("tests/x.py", 'def f():\n    """Of a test."""\n', "x.py:2: a comment must not begin with `Of`"),
    ("bench/x.py", '"""What is timed."""\n', "x.py:1: a comment must not begin with `What`"),
]


def messages(files):
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            if text is not None:
                path = pathlib.Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
        return layers.check(pathlib.Path(folder))


class Layers(unittest.TestCase):
    def test_accepts_a_good_tree(self):
        self.assertEqual(messages(GOOD), [])

    def test_finds_each_violation(self):
        for path, text, expected in BAD:
            with self.subTest(path=path, text=text):
                found = messages(GOOD | {path: text})
                self.assertEqual(len(found), 1, found)
                self.assertIn(expected, found[0])


if __name__ == "__main__":
    unittest.main()
