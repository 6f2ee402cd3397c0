"""What the documents show is what happens.

Every ```python block of README.md and docs/*.md is executed: the blocks of a page one after another, in one
namespace, in a folder of their own. Three things are checked of each:

- what a statement prints has to be what the comment lines right behind it show, or, at the end of a block,
  what the ```text block behind it shows;
- an expression with a comment on its last line that begins like a value has that value;
- nothing is printed that is not shown. ``...`` stands for anything, and spaces and line ends are all one.

Two comments of HTML, which no reader of the page sees, belong to the test::

    <!-- setup
    lines = spark.createDataFrame([(0, "the dog")], "time long, text string")
    -->
    <!-- not run: needs a broker -->

The first is executed where it stands. The second excuses the block behind it. ``spark`` is the session of
Spark's tests on pages that use it; below the folders ``/shared`` and ``/data`` is the folder of the page.

Commands in ```sh blocks and in the text are parsed, not run. Links, files, modules and names have to be there.
"""

from __future__ import annotations

import ast
import importlib
import io
import re
import shlex
import tokenize
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from doctest import ELLIPSIS, NORMALIZE_WHITESPACE, OutputChecker
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer
from typer.core import TyperGroup

import emberflow as ef
from emberflow import cli
from emberflow.commands.adapters import given_fronts, given_sinks

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "emberflow"
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]
DOCUMENTS = [
    *PAGES,
    ROOT / "CONTRIBUTING.md",
    ROOT / "ARCHITECTURE.md",
    ROOT / "bench" / "README.md",
]
LANGUAGES = {"python", "sh", "text", "json", "sql", "dockerfile", "yaml"}
#: Folders that appear when something is run.
BUILT = {"build", "dist"}
#: Places that a page may write to; in the test they are in the folder of the page.
SHARED = ("/shared", "/data")

_FENCE = re.compile(r"^```(.*)$")
_SETUP = re.compile(r"^<!-- setup\n(.*?)^-->$", re.MULTILINE | re.DOTALL)
_NOT_RUN = re.compile(r"^<!-- not run: (.+) -->$")
_INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")


class Block(NamedTuple):
    page: Path
    line: int  # of its first line in the page
    language: str  # setup for a hidden one
    text: str
    not_run: str | None = None

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """All blocks of a page, hidden ones included, in their order."""
    text = page.read_text(encoding="utf-8")
    found = [
        Block(page, text.count("\n", 0, match.start(1)) + 1, "setup", match[1])
        for match in _SETUP.finditer(text)
    ]
    lines = text.splitlines(keepends=True)
    begin: int | None = None
    language, excuse = "", None
    for number, line in enumerate(lines, start=1):
        fence = _FENCE.match(line)
        if fence is None:
            if begin is None and line.strip():
                excused = _NOT_RUN.match(line)
                excuse = excused[1] if excused else None
        elif begin is None:
            begin, language = number + 1, fence[1]
        else:
            found.append(
                Block(page, begin, language, "".join(lines[begin - 1 : number - 1]), excuse)
            )
            begin, excuse = None, None
    return sorted(found, key=lambda block: block.line)


def is_run(block: Block) -> bool:
    return block.language in ("python", "setup") and block.not_run is None


def uses_spark(page: Path) -> bool:
    names = {
        node.id
        for block in blocks(page)
        if is_run(block)
        for node in ast.walk(ast.parse(block.text))
        if isinstance(node, ast.Name)
    }
    return "spark" in names


# --- Running ------------------------------------------------------------------------------------------


def check_shown(want: str, got: str, where: str) -> None:
    matches = OutputChecker().check_output(want, got, ELLIPSIS | NORMALIZE_WHITESPACE)
    assert matches, f"{where} shows\n{want}\nand this came:\n{got}"


def comments(text: str) -> dict[int, str]:
    """The comments of a block by line."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return {
        token.start[0]: token.string.removeprefix("#").removeprefix(" ")
        for token in tokens
        if token.type == tokenize.COMMENT
    }


def comment_behind(text: str, line: int) -> str:
    """The comment lines right behind a line."""
    behind = []
    for one in text.splitlines()[line:]:
        if not one.startswith("#"):
            break
        behind.append(one.removeprefix("#"))
    return "\n".join(behind)


def run(block: Block, names: dict[str, Any], shown_behind: str | None) -> None:
    """Execute a block statement by statement and compare what comes with what is shown."""
    said = comments(block.text)
    printed = io.StringIO()
    for statement in ast.parse(block.text).body:
        last = statement.end_lineno
        assert last is not None
        beside = said.get(last, "")
        ast.increment_lineno(statement, block.line - 1)
        with redirect_stdout(printed):
            if isinstance(statement, ast.Expr):
                code = compile(ast.Expression(statement.value), str(block.page), "eval")
                value = eval(code, names)
                if re.match(r"""[{\[('"\d]|True|False|None""", beside):
                    check_shown(beside, repr(value), f"{block.page.name}:{block.line + last - 1}")
            else:
                exec(compile(ast.Module([statement], []), str(block.page), "exec"), names)
        behind = comment_behind(block.text, last)
        if printed.getvalue() and behind:
            check_shown(behind, printed.getvalue(), f"{block.page.name}:{block.line + last}")
            printed = io.StringIO()
    if printed.getvalue():
        assert shown_behind is not None, (
            f"{block} prints what it does not show:\n{printed.getvalue()}"
        )
        check_shown(shown_behind, printed.getvalue(), f"the text behind {block}")


def run_page(page: Path, folder: Path, names: dict[str, Any]) -> int:
    """Run all blocks of a page; how many there were."""
    found = blocks(page)
    count = 0
    try:
        for block, behind in zip(found, [*found[1:], None], strict=True):
            if not is_run(block):
                continue
            count += 1
            shown = behind.text if behind is not None and behind.language == "text" else None
            text = re.sub(rf'(?<=")({"|".join(SHARED)})(?=[/"])', str(folder), block.text)
            run(block._replace(text=text), names, shown)
    finally:
        # Queries that a page leaves running, those first that read from others.
        for value in reversed(list(names.values())):
            if hasattr(value, "awaitTermination") and hasattr(value, "stop"):
                value.stop()
    return count


@pytest.fixture
def enter(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Callable[..., dict[str, Any]]:
    """Makes the namespace of a page, and its folder the one that relative paths are below."""

    def entered(page: Path, folder: Path) -> dict[str, Any]:
        monkeypatch.chdir(folder)
        names: dict[str, Any] = {"__name__": f"block of {page.name}"}
        if uses_spark(page):
            spark = request.getfixturevalue("spark")
            # The JVM has a working directory of its own.
            hadoop = spark._jvm.org.apache.hadoop.fs
            files = hadoop.FileSystem.getLocal(spark._jsc.hadoopConfiguration()).getRawFileSystem()
            before = files.getWorkingDirectory()
            request.addfinalizer(lambda: files.setWorkingDirectory(before))
            files.setWorkingDirectory(hadoop.Path(str(folder)))
            names["spark"] = spark
        return names

    return entered


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(
            page,
            id=page.name,
            marks=[pytest.mark.xdist_group("live")] if uses_spark(page) else [],
        )
        for page in PAGES
        if any(map(is_run, blocks(page)))
    ],
)
def test_the_python_blocks_of_a_page_run_and_give_what_they_show(
    page: Path, tmp_path: Path, enter: Callable[..., dict[str, Any]]
) -> None:
    assert run_page(page, tmp_path, enter(page, tmp_path))


def test_a_block_is_run_or_says_why_not() -> None:
    """With ``pytest -rP`` it lists how many blocks are run, and why others are not."""
    for page in PAGES:
        found = [block for block in blocks(page) if block.language == "python"]
        excused = [block for block in found if block.not_run]
        lines = [f"{page.name}: {len(found) - len(excused)} of {len(found)} Python blocks are run"]
        lines += [f"  {block} is not: {block.not_run}" for block in excused]
        print(*lines, sep="\n")  # noqa: T201
        unknown = [block for block in blocks(page) if block.language not in {*LANGUAGES, "setup"}]
        assert not unknown, f"say what these are, one of {LANGUAGES}: {[*map(str, unknown)]}"
        for block in excused:
            ast.parse(block.text)


# --- Commands -----------------------------------------------------------------------------------------

#: What a wrong command raises: click's error, which typer has a copy of.
UsageError = typer.BadParameter.__base__
COMMANDS = typer.main.get_command(cli.app)
TARGETS = set(
    re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
)


def commands(text: str) -> Iterator[list[str]]:
    """The commands of a ```sh block, without the variables that are set for them."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        while words and re.match(r"[A-Z_]+=", words[0]):
            words.pop(0)
        if words:
            yield words


def check_command(words: list[str]) -> None:
    """Raises what the command line would say to a command that it does not understand."""
    if words[0] == "make":
        targets = [word for word in words[1:] if "=" not in word]
        assert targets, "make what?"
        assert set(targets) <= TARGETS, f"no such target of make: {words}"
    elif words[0] == "emberflow":
        assert isinstance(COMMANDS, TyperGroup)
        group = COMMANDS.make_context("emberflow", words[1:2])
        name, command, _ = COMMANDS.resolve_command(group, words[1:])
        assert command is not None
        context = command.make_context(name, words[2:], parent=group)
        check_adapters(str(name), context.params.get("front"), context.params.get("sink"))


def check_adapters(command: str, fronts: list[str] | None, sinks: list[str] | None) -> None:
    """Whether fronts and sinks can be made of what a command names, of some flow that has them."""
    if command not in ("run", "audit") or not (fronts and sinks):
        return
    flow = ef.Flow("any")
    read = [flow.front(spec.partition("=")[0]) for spec in fronts]
    for spec in sinks:
        if not spec.startswith("errors="):
            ef.merge(*read, read[0]).sink(spec.partition("=")[0])
    more = {"log": lambda front, place: None} if command == "audit" else None
    given_fronts(flow.graph(), fronts, more=more)
    diverts = any(spec.startswith("errors=") for spec in sinks)
    given_sinks(flow.graph(), sinks, "divert" if diverts else "fail")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_commands_of_a_document_are_understood(document: Path) -> None:
    for block in blocks(document):
        if block.language == "sh":
            for words in commands(block.text):
                try:
                    check_command(words)
                except (UsageError, ef.EmberflowError) as error:
                    pytest.fail(f"{block}: {shlex.join(words)}: {error}")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_commands_in_the_text_of_a_document_exist(document: Path) -> None:
    for code in inline_code(document):
        words = code.split()
        if words[0] == "make" and len(words) > 1 and "=" not in words[1]:
            assert words[1] in TARGETS, code
        if words[0] == "emberflow" and len(words) > 1 and not words[1].startswith("-"):
            assert isinstance(COMMANDS, TyperGroup)
            command = COMMANDS.commands.get(words[1])
            assert command is not None, f"there is no command `{code}`"
            known = {option for parameter in command.params for option in parameter.opts}
            asked = {word for word in words if word.startswith("--")}
            assert asked <= known, f"{code}: there is no option {asked - known}"


# --- Names --------------------------------------------------------------------------------------------


def inline_code(document: Path) -> list[str]:
    """What a document has between backticks, outside of its blocks."""
    text = re.sub(
        r"^```.*?^```$", "", document.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    return _INLINE.findall(text)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_links_of_a_document_lead_to_files_and_headings(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    for link, heading in re.findall(r"\]\(([^)#:]*)(?:#([^)]+))?\)", text):
        target = document.parent / link if link else document
        assert target.exists(), f"{document.name} links to {link}"
        if heading:
            assert heading in headings(target), f"{document.name} links to {link}#{heading}"


def headings(document: Path) -> set[str]:
    """The headings of a document as links name them."""
    found = re.findall(r"^#+ (.*)$", document.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_files_that_a_document_names_are_there(document: Path) -> None:
    folders = {
        path.name for top in (ROOT, SOURCE) for path in top.iterdir() if path.is_dir()
    } - BUILT
    for code in inline_code(document):
        if re.fullmatch(r"[\w./-]+/[\w./-]*", code) and code.split("/")[0] in folders:
            assert (SOURCE / code).exists() or (ROOT / code).exists(), f"there is no {code}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_names_that_a_document_uses_are_there(document: Path) -> None:
    for code in inline_code(document):
        for name in re.findall(
            r"(?<![\w./-])(?:ef|emberflow)\.([a-z_]\w*(?:\.\w+)*|[A-Z]\w*)", code
        ):
            assert has_name(name), f"{code}: there is no emberflow.{name}"
        for name in re.findall(r"(?<![\w.])((?:fronts|sinks)\.\w+)", code):
            assert has_name(name), f"{code}: there is no emberflow.{name}"


def has_name(name: str) -> bool:
    """Whether emberflow has it: a module, or what is in one."""
    found: Any = ef
    path = "emberflow"
    for part in name.split("."):
        path = f"{path}.{part}"
        if hasattr(found, part):
            found = getattr(found, part)
        else:
            try:
                found = importlib.import_module(path)
            except ImportError:
                return False
    return True


# --- The checks themselves ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("print([1])\n# [2]", "shows"),
        ("print([1])\n", "prints what it does not show"),
        ("sum([1, 2])  # 3", None),
        ("sum([1, 2])  # 4", "shows"),
        ("sum([1, 2])  # how many there are", None),
        ("print(1)\nprint(2)\n# 1\n# 2", None),
        ("print({'a': 1, 'b': 2})\n# {'a': 1, ...}", None),
        ("assert 1 == 2, 'one is not two'", "one is not two"),
    ],
)
def test_the_check_of_a_block_catches(text: str, complaint: str | None) -> None:
    block = Block(Path("page.md"), 1, "python", text)
    if complaint is None:
        run(block, {}, None)
    else:
        with pytest.raises(AssertionError, match=complaint):
            run(block, {}, None)


def test_hidden_and_excused_blocks_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- setup\nx = 1\n-->\n```python\nprint(x)\n```\n\n```text\n1\n```\n"
        "<!-- not run: needs a broker -->\n```python\nspark\n```\n```python\ny = x\n```\n"
    )
    assert [(block.line, block.language, block.not_run) for block in blocks(page)] == [
        (2, "setup", None),
        (5, "python", None),
        (9, "text", None),
        (13, "python", "needs a broker"),
        (16, "python", None),
    ]
    assert run_page(page, tmp_path, {}) == 3
    assert not uses_spark(page)


@pytest.mark.parametrize(
    "command",
    [
        "emberflow walk shop:flow",
        "emberflow run shop:flow --fronts docs=files:in",
        "emberflow run shop:flow --front docs=ftp:in --sink changes=files:out",
        "emberflow run shop:flow --front docs=kafka://host:1/docs?colour=red --sink changes=console",
        "emberflow verify shop:flow --seeds many",
        "make coffee",
    ],
)
def test_the_check_of_commands_catches(command: str) -> None:
    with pytest.raises((UsageError, ef.EmberflowError, AssertionError)):
        check_command(shlex.split(command))
