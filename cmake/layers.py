#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails, naming file and line, where the shape of the code is left:
 - a layer includes only what its row of LAYERS names, a room of a layer what its row of ROOMS names;
   torch begins at codecs; nobody includes torch/torch.h
 - compact/compact.h is for programs, and what ends with _impl.h for its own folder alone
 - headers of ours are included by their full path; a backend's own headers stay inside kernels/
 - every folder of kernels/ with sources is a backend, and is in the list of cmake/backends.cmake
 - every `extern const SomethingInfo name` (a codec, projection, model, ...) is in a table beside it
 - a room of python/compact imports only rooms before it in PYTHON_ROOMS, and no file imports itself through
   others; imports inside functions count
 - private names of torch are in python/compact/base/torch_private.py alone, and those of transformers and trl beside it
 - no line of a comment begins with `Of`, `What`, `Whose` or `Those`: it names its subject

    layers.py [ROOT]
"""
import ast
import graphlib
import pathlib
import re
import sys

ATEN = ("ATen", "c10")
TORCH = ATEN + ("torch",)
BELOW_OPS = {"base", "kernels", "codecs"}
BELOW_REPORT = BELOW_OPS | {"json", "ops", "networks", "parallel", "optim", "models", "plan", "io", "config"}
BELOW_TRAIN = BELOW_REPORT | {"report", "data", "tasks"}
# layer: (other layers that it may include, folders of torch's headers that it may include)
LAYERS = {
    "base": (set(), ()),
    "kernels": ({"base"}, ()),
    "codecs": ({"base", "kernels"}, TORCH),
    "json": ({"base"}, ()),
    "data": ({"base", "json"}, ATEN),
    "io": ({"base", "json"}, ATEN),
    "parallel": ({"base"}, TORCH),
    "ops": (BELOW_OPS, TORCH),
    "optim": (BELOW_OPS | {"parallel"}, TORCH),
    "networks": (BELOW_OPS | {"ops"}, TORCH),
    "python": (BELOW_OPS | {"ops", "networks", "optim", "plan"}, TORCH),
    "models": (BELOW_OPS | {"ops", "networks", "io"}, TORCH),
    "plan": (BELOW_OPS | {"ops", "networks", "parallel", "optim"}, TORCH),
    "config": (BELOW_OPS | {"optim", "io"}, TORCH),
    "report": (BELOW_REPORT, TORCH),
    "tasks": (BELOW_TRAIN, TORCH),
    "train": (BELOW_TRAIN, TORCH),
    "apps": (BELOW_TRAIN | {"train"}, TORCH),
    "cli": (BELOW_TRAIN | {"train", "apps"}, TORCH),
}
# room of a layer: the other rooms of it that it may include; files beside the rooms are room "",
# and where there is a room "*", every other folder is one
ROOMS = {
    "models": {"": set(), "*": {""}},
    "plan": {"": {"meta"}, "meta": set()},
    "ops": {
        "policy": set(),
        "memory": set(),
        "autograd": set(),
        "cpu": {"autograd"},
        "functions": {"policy", "memory", "autograd"},
        "segments": {"policy", "memory", "autograd", "scopes"},
        "stages": {"policy", "autograd", "functions", "segments"},
        "scopes": {"policy"},
    },
    "data": {
        "samples": set(),
        "files": set(),
        "tokenizers": {"files"},
        "text": {"samples", "files", "tokenizers"},
        "images": {"samples", "files"},
        "graphs": {"samples", "files"},
    },
}
# folders of python/compact, from the lowest; files beside them are room ""
PYTHON_ROOMS = (
    "base",
    "prepare",
    "projected_weights",
    "planning",
    "any_network",
    "layers",
    "optimizers",
    "",
    "plan_process",
)
PRIVATE = {library: f"base/{library}_private.py" for library in ("torch", "transformers", "trl")}
FRONT_DOOR = "compact/compact.h"
WHOLE_TORCH = {"torch/torch.h", "torch/all.h", "torch/extension.h"}  # 11 s of compiling a file
SOURCES = {".h", ".cpp", ".cu", ".cuh"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
FRAGMENT = re.compile(r'(?:(?:^|\s)(?://|#) *|^\s*""")(Of|What|Whose|Those) ')
COMMENTED = ("bench", "cmake", "compact", "examples", "fuzz", "python", "scripts", "tests")
INFO = re.compile(r"^\s*extern\s+const\s+\w*Info\s+(\w+)\s*(?:=|\{)", re.M)


def sources(folder, suffixes=SOURCES):
    return sorted(f for f in folder.rglob("*") if f.suffix in suffixes) if folder.is_dir() else []


def includes(file):
    for number, line in enumerate(file.read_text().splitlines(), 1):
        if match := INCLUDE.match(line):
            yield number, match[1] == '"', match[2]


def without_comments(text):
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.S)


def room_of(parts):
    """The ROOM of compact/LAYER/ROOM/FILE; "" where a file lies beside the rooms."""
    return parts[2] if len(parts) > 3 else ""


def check_includes(root):
    for file in sources(root / "compact"):
        path = file.relative_to(root)
        layer = path.parts[1]
        if path.as_posix() == FRONT_DOOR:
            for number, _, header in includes(file):
                if header.endswith("_impl.h") or not header.startswith(("compact/", "ATen/")):
                    yield f"{path}:{number}: {header} is not for programs"
            continue
        if len(path.parts) < 3 or layer not in LAYERS:
            yield f"{path}: is in no layer; the layers are {', '.join(LAYERS)}"
            continue
        known, torch = LAYERS[layer]
        rooms, room = ROOMS.get(layer), room_of(path.parts)
        if rooms and room not in rooms and (room == "" or "*" not in rooms):
            yield f"{path}: is in no room; those of {layer} are {', '.join(rooms)}"
            continue
        beside = rooms and rooms.get(room, rooms.get("*")) | {room}
        for number, quoted, header in includes(file):
            parts = header.split("/")
            where = f"{path}:{number}:"
            if parts[0] == "compact":
                if parts[1] != layer and parts[1] not in known:
                    yield f"{where} {layer} must not include {parts[1]} ({header})"
                elif rooms and parts[1] == layer and room_of(parts) not in beside:
                    yield f"{where} {layer}/{room} must not include {layer}/{room_of(parts)} ({header})"
                elif header.endswith("_impl.h") and parts[:-1] != list(path.parts[:-1]):
                    yield f"{where} {header} is for its own folder alone"
                elif parts[1] == "kernels" and len(parts) > 3 and layer != "kernels":
                    yield f"{where} a backend's header is for kernels/ only ({header})"
            elif parts[0] in TORCH + ("caffe2", "pybind11"):
                if parts[0] not in torch:
                    allowed = " and ".join(torch) or "nothing of torch"
                    yield f"{where} {layer} may include {allowed} ({header})"
            elif quoted:
                yield f'{where} include "compact/...", or a library in <> ({header})'


def check_whole_torch(root):
    for folder in ("compact", "tests", "bench", "examples", "cmake", "fuzz"):
        for file in sources(root / folder):
            for number, _, header in includes(file):
                if header in WHOLE_TORCH:
                    yield f"{file.relative_to(root)}:{number}: include what is used, not {header}"


def check_backends(root):
    text = re.sub(r"#[^\n]*", "", (root / "cmake/backends.cmake").read_text())
    listed = set()
    for names in re.findall(
        r"(?:set\(COMPACT_BACKENDS|list\(\w+ COMPACT_BACKENDS)([^)]*)\)", text
    ):
        listed.update(names.split())
    kernels = root / "compact/kernels"
    for folder in sorted(f for f in kernels.iterdir() if f.is_dir() and sources(f)):
        name = folder.name
        if name not in listed:
            yield f"compact/kernels/{name}: is not in COMPACT_BACKENDS of cmake/backends.cmake"
        code = "".join(without_comments(f.read_text()) for f in sources(folder))
        if not re.search(rf"extern\s+const\s+Backend\s+{name}_backend\b", code):
            yield f"compact/kernels/{name}: defines no `extern const Backend {name}_backend`"
    for name in sorted(listed):
        if not sources(kernels / name):
            yield f"cmake/backends.cmake: backend {name} has no sources in compact/kernels/{name}"


def check_tables(root):
    for layer in LAYERS:
        texts = {f: without_comments(f.read_text()) for f in sources(root / "compact" / layer)}
        for file, text in texts.items():
            for name in INFO.findall(text):
                listed = re.compile(rf"(?:&\s*(?:\w+::)*|\bX\(\s*){name}\b")
                if not any(listed.search(other) for f, other in texts.items() if f != file):
                    yield f"{file.relative_to(root)}: `{name}` is in no table of compact/{layer}"


def python_imports(tree, folder, files):
    """Line and file of every import of a file in `folder` of python/compact from that package."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            near = ["compact", *folder][: len(folder) + 2 - node.level] if node.level else []
            paths = [[*near, *(node.module or "").split("."), alias.name] for alias in node.names]
        elif isinstance(node, ast.Import):
            paths = [alias.name.split(".") for alias in node.names]
        else:
            continue
        for path in ([part for part in path if part] for path in paths):
            while path[0] == "compact":  # the last parts may be names in a file
                name = "/".join(path[1:])
                if found := {f"{name}.py", f"{name}/__init__.py".lstrip("/")} & files:
                    yield node.lineno, *found
                    break
                path = path[:-1]


def private_names(tree):
    """Line and path of every name with an underscore: torch._C, from torch.x import _y, module._hooks, "_hooks"."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level:
            paths = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            paths = [alias.name for alias in node.names]
        elif isinstance(node, ast.Attribute) and "._" not in ast.unparse(node.value):
            paths = [ast.unparse(node)]
        elif isinstance(node, ast.Constant) and str(node.value).isidentifier():
            paths = [f"text.{node.value}"]  # as getattr() and attrgetter() take it
        else:
            continue
        yield from ((node.lineno, path) for path in paths if re.search(r"\._[^_]", path))


def check_python(root):
    package = root / "python/compact"
    trees = {f.relative_to(package).as_posix(): ast.parse(f.read_text()) for f in sources(package, {".py"})}
    theirs = {path.rpartition(".")[2] for f in PRIVATE.values() if f in trees for _, path in private_names(trees[f])}
    graph = {}
    for file, tree in trees.items():
        room = file.rpartition("/")[0]
        if room not in PYTHON_ROOMS:
            yield f"python/compact/{file}: is in no room; those of python/compact are {', '.join(PYTHON_ROOMS)}"
            continue
        imports = list(python_imports(tree, room.split("/") if room else [], trees.keys()))
        graph[file] = {other for _, other in imports}
        for line, other in imports:
            if other.rpartition("/")[0] in PYTHON_ROOMS[PYTHON_ROOMS.index(room) + 1 :]:
                yield f"python/compact/{file}:{line}: {room or 'the package'} must not import {other}"
        for line, path in private_names(tree):
            library = path.split(".")[0]
            if file not in PRIVATE.values() and (library in PRIVATE or path.rpartition(".")[2] in theirs):
                yield f"python/compact/{file}:{line}: {path} belongs in {PRIVATE.get(library, 'the files of private names')}"
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        yield f"python/compact: a circle of imports: {' -> '.join(error.args[1])}"


def check_comments(root):
    for folder in COMMENTED:
        for file in sources(root / folder, SOURCES | {".py", ".sh", ".cmake"}):
            for number, line in enumerate(file.read_text().splitlines(), 1):
                if match := FRAGMENT.search(line):
                    yield f"{file.relative_to(root)}:{number}: a comment must not begin with `{match[1]}`"


def check(root):
    return [
        message
        for rule in (check_includes, check_whole_torch, check_backends, check_tables, check_python, check_comments)
        for message in rule(root)
    ]


if __name__ == "__main__":
    here = pathlib.Path(__file__).resolve().parent.parent
    errors = check(pathlib.Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else here)
    print("\n".join(errors) or "layers: as they should be")
    sys.exit(bool(errors))
