# SPDX-License-Identifier: Apache-2.0
"""A hook of mkdocs: the README is the first page, and what pages link to in the repository comes along."""
import pathlib
import posixpath
import re

from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = pathlib.Path(__file__).resolve().parents[1]
LINK = re.compile(r'(\]\(|(?:src|srcset)=")([^)"#\s]+)(#[^)"\s]*)?(?=[)"])')
PAGES = "repository"  # the folder of what comes along


def _targets(text, folder):
    """The links of a page that stands in `folder`, with the files in the repository that they are to."""
    for match in LINK.finditer(text):
        if "://" not in match[2]:
            yield match, posixpath.normpath(posixpath.join(folder, match[2]))


def _page_of(path):
    """Where a file of the repository stands among the pages."""
    if path == "README.md":
        return "index.md"
    return path.removeprefix("docs/") if path.startswith("docs/") else f"{PAGES}/{path}"


def _rewritten(text, folder, page):
    """A text with its links as they are from `page`; those to folders become their names."""
    pieces, end = [], 0
    for match, target in _targets(text, folder):
        pieces.append(text[end : match.start()])
        end = match.end()
        found = ROOT / target
        if found.is_file():
            relative = posixpath.relpath(_page_of(target), posixpath.dirname(page) or ".")
            pieces.append(match[1] + relative + (match[3] or ""))
        else:
            pieces.append(match[0] if not found.is_dir() else f"{match[1]}{posixpath.relpath('index.md', posixpath.dirname(page) or '.')}")
    return "".join(pieces) + text[end:]


def on_files(files: Files, config):
    """The README, and every file that a page links to, and so on."""
    waiting = ["README.md"] + [f"docs/{f.src_uri}" for f in files.documentation_pages()]
    known = set()
    while waiting:
        path = waiting.pop()
        if path in known:
            continue
        known.add(path)
        page = _page_of(path)
        if path.endswith(".md"):
            text = (ROOT / path).read_text()
            folder = posixpath.dirname(path)
            waiting += [target for _, target in _targets(text, folder) if (ROOT / target).is_file()]
            made = File.generated(config, page, content=_rewritten(text, folder, page))
            if page.startswith(PAGES):
                made.inclusion = InclusionLevel.NOT_IN_NAV
        elif path.startswith("docs/"):
            continue
        else:
            made = File.generated(config, page, abs_src_path=str(ROOT / path))
        if page in files.src_uris:
            files.remove(files.src_uris[page])
        files.append(made)
    return files
