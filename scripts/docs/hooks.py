"""What the site has beyond docs/: pages from elsewhere in the repository, and two checks.

What is guaranteed: **a link that works in the repository works on the site**, or the build fails. The
build also fails if a page would ask another address for a script, a style or an image, and if the
reference lacks a public name.

MkDocs knows files below docs/ only. So these are added under their path in the repository: the documents
at its top, the benchmarks with their plots, a page for each example and one for each notebook. A link
to one of them is rewritten on the way, because docs/ is the top of the site.
"""

from __future__ import annotations

import ast
import json
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
DOCUMENTS = ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "bench/README.md")
#: The modules whose public names the reference has.
REFERENCE = (
    "emberflow",
    "emberflow.fronts",
    "emberflow.sinks",
    "emberflow.kafka",
    "emberflow.testing",
)

_LINK = re.compile(r"(!?)\[([^\]\n]*)\]\(([^)#:\s]+)(#[^)\s]*)?\)")
_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_FETCHED = re.compile(
    r"<(?:script|img|link|iframe|source)\b[^>]*?(?:src|href)=[\"']?(?:https?:)?//[^>]*>"
)


# --- Pages from elsewhere -----------------------------------------------------------------------------


def on_files(files: Files, config: MkDocsConfig) -> Files:
    def add(path: str, content: str | None = None) -> None:
        if content is None:
            files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
        else:
            files.append(File.generated(config, path, content=content))

    for path in DOCUMENTS:
        add(path)
    for plot in sorted((ROOT / "bench" / "plots").glob("*.png")):
        add(f"bench/plots/{plot.name}")
    for path, content in (*_examples(), *_notebooks()):
        add(path, content)
    return files


def _examples() -> Iterator[tuple[str, str]]:
    rows = [
        "# Examples\n",
        "Each file is one idea, and runs by itself.\n",
        "| | |",
        "| --- | --- |",
    ]
    for path in sorted((ROOT / "examples").glob("*.py")):
        if path.stem == "conftest":
            continue
        source = path.read_text(encoding="utf-8")
        title = (ast.get_docstring(ast.parse(source)) or path.stem).splitlines()[0]
        rows.append(f"| [{path.name}]({path.stem}.md) | {title} |")
        yield f"examples/{path.stem}.md", f"# {path.name}\n\n```python\n{source}```\n"
    rows.append("| [nexmark](nexmark.md) | The queries of NEXMark, each beside its SQL. |")
    nexmark = [
        f"## {path.name}\n\n```python\n{path.read_text(encoding='utf-8')}```\n"
        for path in sorted((ROOT / "examples" / "nexmark").glob("*.py"))
        if path.stem not in ("__init__", "__main__")
    ]
    yield "examples/nexmark.md", "\n".join(["# examples/nexmark\n", *nexmark])
    yield "examples/index.md", "\n".join(rows) + "\n"


def _notebooks() -> Iterator[tuple[str, str]]:
    """A notebook as a page: its text and code, and the file itself to take along."""
    for path in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        parts = []
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            text = "".join(cell["source"])
            parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        parts.insert(1, f"[Download the notebook]({path.name}) and run it with Jupyter.")
        yield f"notebooks/{path.stem}.md", "\n\n".join(parts) + "\n"


# --- Links --------------------------------------------------------------------------------------------


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    uri = page.file.src_uri
    is_outside = page.file.generated_by is not None
    folder = posixpath.dirname(uri if is_outside else f"docs/{uri}")

    def rewritten(match: re.Match[str]) -> str:
        image, text, link, anchor = match[1], match[2], match[3], match[4] or ""
        target = _on_site(posixpath.normpath(posixpath.join(folder, link)))
        if files.get_file_from_path(target) is None:
            if not is_outside and not link.startswith("../"):
                return match[0]  # MkDocs says what is wrong with it
            if not (ROOT / folder / link).exists():
                raise PluginError(f"{uri} links to {link}, which does not exist")
            return text  # a file of the repository that the site does not have
        return (
            f"{image}[{text}]({posixpath.relpath(target, posixpath.dirname(uri) or '.')}{anchor})"
        )

    def outside_of_code(text: str) -> Iterator[str]:
        end = 0
        for fenced in _FENCED.finditer(text):
            yield _LINK.sub(rewritten, text[end : fenced.start()])
            yield fenced[0]
            end = fenced.end()
        yield _LINK.sub(rewritten, text[end:])

    return "".join(outside_of_code(markdown))


def _on_site(path: str) -> str:
    """Where a file of the repository is on the site."""
    if path == "README.md":
        return "index.md"
    if path == "examples":
        return "examples/index.md"
    if path.startswith("examples/"):
        return path.removesuffix(".py") + ".md" if not path.endswith(".md") else path
    return path.removeprefix("docs/")


# --- Checks -------------------------------------------------------------------------------------------


def on_post_build(config: MkDocsConfig, **_: Any) -> None:
    for page in sorted(Path(config.site_dir).rglob("*.html")):
        if fetched := _FETCHED.search(page.read_text(encoding="utf-8")):
            raise PluginError(f"{page} would ask another address: {fetched[0]}")
    shown = set(
        re.findall(
            r"^::: ([\w.]+)",
            "\n".join(
                path.read_text(encoding="utf-8") for path in Path(config.docs_dir).glob("api/*.md")
            ),
            re.MULTILINE,
        )
    )
    if missing := sorted(_public() - shown):
        raise PluginError(f"docs/api/ has nothing on {', '.join(missing)}")


def _public() -> set[str]:
    """All public names, from the source alone: the packages that it needs are not installed here."""
    names = set()
    for module in REFERENCE:
        source = ROOT / "src" / Path(*module.split(".")) / "__init__.py"
        for statement in ast.parse(source.read_text(encoding="utf-8")).body:
            if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__":
                names |= {f"{module}.{name}" for name in ast.literal_eval(statement.value)}
    return names - set(REFERENCE)
