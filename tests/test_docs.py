"""Examples of the documentation and README, run page by page, each page in its own folder.

A code block with a caption is a file of that name. Python blocks of a page share their names. What
stands after `$` in a console block is typed and has to answer as shown, to the last line: nothing
is elided. Below the comment `numbers vary`, numbers, ids, times and paths are not compared.

After a change of outputs: WRITE_OUTPUTS=1 pytest -n 0 tests/test_docs.py -k PAGE, and read the
diff.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sybil import Region, Sybil
from sybil.document import Document
from sybil.example import Example
from sybil.parsers.myst import PythonCodeBlockParser, SkipParser

from assay.build.registry import registry
from assay.core import schema
from warm_python import Run
from warm_python import run as cold

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(page for page in DOCS.rglob("*.md") if "_build" not in page.parts)

FILE = re.compile(
    r"^```\{code-block\} \S+\n:caption: (?P<name>\S+)\n\n?(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
CONSOLE = re.compile(r"^```console\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
NUMBERS_VARY = "<!-- numbers vary -->\n"  # right above a console block that shows a whole output
VARYING = (
    (r"\n {8,}(?=\S)", " "),  # a line went on in the next, as a longer path makes it
    (r" +eta .*$", ""),
    (r" on \{.*\}$", ""),  # variables of a job
    (
        r"was killed by SIGKILL|ended without a word",
        "died",
    ),  # as another rank sees it first or last
    (r"^  on .*$", "  on MACHINE"),
    (r"'/[^'\n]*'", "PATH"),  # the interpreter, quoted where its folder has a space
    (r"/\S*/runs/", "RUNS "),
    (r"(?<!\w)/[\w./-]+", "PATH"),
    (r"\b[0-9a-f]{12}\b", "DIGEST"),
    (r"\b([a-z2-7]{8}|[0-9a-f]{8})\b", "ID"),  # of a run; a digest is shown by its beginning
    (r"[-+]?\d[\d,]*(\.\d+)?(e[-+]\d+)?", "0"),
    (r"\b0 (ms|s|min)\b( 0 s\b)?", "0 s"),
    (r"\b(now|0 s ago)\b", "AGO"),
    (r" +", " "),
)
"""Pattern -> its replacement, where two runs of one command differ: times, ids, losses, paths."""
PROMPT = "$ "
WRITES = bool(os.environ.get("WRITE_OUTPUTS"))
PYTHON = "what runs python"  # a name that no page can give to something of its own
PROGRAMS = {"assay": ["-m", "assay"], "python": []}
RUNS = re.compile(r"^```(python|console)$", re.MULTILINE)
BLOCK = re.compile(r"^```\S.*?^```$", re.MULTILINE | re.DOTALL)
LONG = {
    "a-night-of-experiments.md",
    "comparing.md",
    "early-stopping.md",
    "exporting.md",
    "golden-runs.md",
    "hyperparameter-search.md",
    "keras.md",
    "libai.md",
    "multi-node.md",
    "pipeline-parallel.md",
    "sharded.md",
    "tensor-parallel.md",
}  # pages of over five seconds: `thorough`
NEEDS_TORCH = re.compile(r"\btorch\b|assay\.engine")


def pages() -> list[Any]:
    """One parameter for each page that shows something to run.

    Chinese pages have the code of the English ones (`test_translations.py`).
    """
    found = []
    for page in PAGES:
        if "zh" in page.parts:
            continue
        text = page.read_text(encoding="utf-8")
        if RUNS.search(text):
            marks = [pytest.mark.slow] if any(map(NEEDS_TORCH.search, BLOCK.findall(text))) else []
            marks += [pytest.mark.thorough] if page.name in LONG else []
            found.append(pytest.param(page, id=page.relative_to(ROOT).as_posix(), marks=marks))
    return found


@pytest.mark.timeout(300)  # a page may run a dozen commands
@pytest.mark.parametrize("page", pages())
def test_the_examples_of_a_page_run(
    warm: Run, page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    assert run(page, warm) > 0


def test_every_page_of_the_tour_and_the_reference_is_run() -> None:
    books = [page for page in PAGES if page.parent.name in ("tour", "reference")]

    silent = [page.name for page in books if not RUNS.search(page.read_text(encoding="utf-8"))]

    assert len(books) > 10 and silent == []


@pytest.mark.parametrize("fence", ["console", "text", "py"])
def test_a_line_that_stands_for_others_is_found(fence: str) -> None:
    block = f"```{fence}\n$ assay ls\nfirst\n{{}}\n```\n"

    assert elisions(block.format("  ...")) == ["  ..."]
    assert elisions(block.format("def f(): ...")) == []
    assert elisions("One.\n\n...\n") == []


def test_no_example_leaves_lines_out() -> None:
    """Within a line `...` is what a command prints itself, Python's Ellipsis, or a secret's end."""
    pages = [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"]

    found = {page.name: elisions(page.read_text(encoding="utf-8")) for page in pages}

    assert {name: lines for name, lines in found.items() if lines} == {}


def test_every_key_of_a_standard_section_is_on_its_page() -> None:
    text = (DOCS / "reference" / "config.md").read_text(encoding="utf-8")
    todo = [*schema.SECTIONS]
    names = {*schema.MAKERS}
    while todo:
        key = todo.pop()
        names.add(key.name)
        todo += key.keys

    assert [name for name in sorted(names) if f"`{name}`" not in text] == []


def test_every_page_is_in_the_table_of_contents() -> None:
    tables = {page: page.read_text(encoding="utf-8") for page in PAGES if page.name == "index.md"}
    listed = {
        (index.parent / entry).resolve()
        for index, text in tables.items()
        for table in re.findall(r"^```\{toctree\}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        for line in table.splitlines()
        if line and not line.startswith(":")
        for entry in (
            [found.name for found in index.parent.glob(f"{line}.md")]
            if "*" in line
            else [f"{line}.md"]
        )
    }

    assert sorted(listed) == [page for page in PAGES if page != DOCS / "index.md"]


def test_the_mistake_in_the_readme_is_answered_as_shown_there() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (shown,) = re.findall(
        r"^\$ assay (run \S+ trian\S+)\n(error: .*?)```", readme, re.MULTILINE | re.DOTALL
    )
    command, answer = shown

    code, said = typed(f"assay {command}", ROOT, cold)

    assert (code, said.rstrip()) == (2, answer.rstrip())


def test_the_tree_in_the_readme_has_every_folder_and_nothing_else() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (tree,) = re.findall(r"^src/assay/\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    house = ROOT / "src" / "assay"

    rooms = re.findall(r"^[├└]── (\S+?)/? ", tree, re.MULTILINE)
    others = re.findall(r"^(\w+)/ ", tree, re.MULTILINE)

    folders = {each.parent.name for each in house.glob("*/__init__.py")}
    assert {room for room in rooms if not room.endswith(".py")} == folders
    assert all((house / room).exists() for room in rooms)
    assert all((ROOT / other).is_dir() for other in others) and len(others) == 5


def test_a_broken_example_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.md"
    page.write_text(
        "Try:\n\n```python\nx = 1\n```\n\nThen:\n\n```python\nassert x == 2\n```\n",
        encoding="utf-8",
    )

    with pytest.raises(AssertionError):
        run(page, cold)


CONSOLE_PAGE = """\
```{code-block} toml
:caption: a.toml

[trian]
```

```console
$ assay check --shape a.toml
error: unknown key `trian`                                         [unknown-key]
 --> a.toml:1:2
  |
1 | [trian]
  |  ^^^^^
  = did you mean `train`?

1 error
$ echo $?
CODE
```
"""


def test_a_console_block_is_typed_in_the_folder_with_the_files_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    right, wrong = tmp_path / "right.md", tmp_path / "wrong.md"
    right.write_text(CONSOLE_PAGE.replace("CODE", "2"), encoding="utf-8")
    wrong.write_text(CONSOLE_PAGE.replace("CODE", "0"), encoding="utf-8")

    assert run(right, cold) == 2
    with pytest.raises(AssertionError, match=r"\$ echo \$\?\nsays:\n2\ninstead of:\n0"):
        run(wrong, cold)


def test_every_decision_is_numbered_once_and_says_what_was_turned_down() -> None:
    pages = sorted((DOCS / "decisions").glob("0*.md"))

    numbers = [page.name[:4] for page in pages]
    assert numbers == [f"{number:04}" for number in range(1, len(pages) + 1)]
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert text.startswith(f"# {page.name[:4]}: "), page.name
        for part in (
            "**Context.**",
            "**Choice.**",
            "**Turned down.**",
            "**Look at it again when**",
        ):
            assert part in text, f"{page.name} lacks {part}"


def elisions(text: str) -> list[str]:
    """Return lines of blocks that stand for lines that were left out.

    A text that is shown as it was printed elsewhere keeps its own.
    """
    blocks = [block for block in BLOCK.findall(text) if "# configs/config.py" not in block]
    return [line for block in blocks for line in block.splitlines() if line.strip() == "..."]


def run(page: Path, python: Run) -> int:
    """Run the examples of one page in order; how many there were."""
    document = SYBIL.parse(page)
    document.namespace[PYTHON] = python
    document.namespace["__name__"] = "__main__"
    found: list[Example] = list(document.examples())
    names = registry.open(lambda file: file == str(page))
    try:
        for example in found:
            example.evaluate()
    finally:
        registry.close(names)
    return len(found)


def files_of(document: Document) -> Iterator[Region]:
    """Yield blocks with a caption: files of the page. Python ones say `py`, as `python` is run."""
    for found in FILE.finditer(document.text):
        yield Region(found.start(), found.end(), (found["name"], found["text"]), write)


def consoles_of(document: Document) -> Iterator[Region]:
    for found in CONSOLE.finditer(document.text):
        varies = document.text[: found.start()].endswith(NUMBERS_VARY)
        yield Region(found.start(), found.end(), found["text"], loosely if varies else converse)


def write(example: Example) -> None:
    name, text = example.parsed
    file = Path.cwd() / name
    assert file.is_relative_to(Path.cwd())
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def loosely(example: Example) -> None:
    """Type every command of a block that shows a whole output, and compare only its words."""
    converse(example, worded)


def worded(text: str) -> str:
    """Return an output without what differs between two runs of one command.

    >>> worded("finished  ab2c5xyz  loss 0.25  3 s  eta 12 s\\nrecord:  /home/me/runs/2611-ab2c5xyz")
    'ID ID loss 0 0 s\\nrecord: RUNS 0-ID'
    """
    for pattern, instead in VARYING:
        text = re.sub(pattern, instead, text, flags=re.MULTILINE)
    return text


def converse(example: Example, form: Callable[[str], str] = str) -> None:
    """Type every command of a block; AssertionError where one answers otherwise than shown."""
    said = example.parsed.removeprefix(PROMPT)
    assert said != example.parsed, f"a console block begins with `{PROMPT}`: {example.parsed}"
    code, shown, is_same = 0, "", True
    for turn in said.split(f"\n{PROMPT}"):
        command, _, expected = turn.partition("\n")
        if command == "echo $?":
            answer = f"{code}\n"
        else:
            code, answer = typed(command, Path.cwd(), example.namespace[PYTHON])
        shown += f"{PROMPT}{command}\n{trimmed(answer)}"
        is_same = is_same and is_like(form(answer), form(expected))
        if not is_same and not WRITES:
            raise AssertionError(
                f"{PROMPT}{command}\nsays:\n{answer.rstrip()}\ninstead of:\n{expected.rstrip()}"
            )
    if not is_same:
        rewrite(example, shown.replace(str(Path.cwd()), "/home/me/digits"))


def rewrite(example: Example, shown: str) -> None:
    """Put what the commands of a block say into its page."""
    page = Path(example.path)
    text = page.read_text(encoding="utf-8")
    varies = "" if worded(shown) == re.sub(" +", " ", shown) else NUMBERS_VARY
    old = f"```console\n{example.parsed}```\n"
    if f"{NUMBERS_VARY}{old}" not in text and worded(shown) != worded(example.parsed):
        text = text.replace(old, f"{varies}{old}")
    page.write_text(text.replace(old, f"```console\n{shown}```\n"), encoding="utf-8")


def typed(command: str, folder: Path, python: Run) -> tuple[int, str]:
    """The exit code of a command and all that it says."""
    program, *arguments = shlex.split(command)
    variables = {
        **os.environ,
        "COLUMNS": "80",
        "NO_COLOR": "1",
        "PYTHONPATH": str(ROOT / "src"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "ASSAY_CORES": "1",  # jobs of the queue in turn
        "ASSAY_QUEUE_DIR": f"{folder}-queue",
    }
    done = python([*PROGRAMS[program], *arguments], folder=folder, variables=variables, joined=True)
    return done.returncode, done.stdout


def is_like(answer: str, expected: str) -> bool:
    """Return True if they are equal but for blanks at the ends of lines; `...` stands for itself.

    >>> is_like("a \\nb\\n", "a\\nb"), is_like("a\\n", "..."), is_like("a\\n", "b")
    (True, False, False)
    """
    return trimmed(answer) == trimmed(expected)


def trimmed(text: str) -> str:
    """Return an output without empty lines around it and blanks at the ends of lines."""
    lines = [line.rstrip() for line in text.strip("\n").split("\n")]
    return "".join(f"{line}\n" for line in lines) if lines != [""] else ""


SYBIL = Sybil(parsers=[PythonCodeBlockParser(), SkipParser(), files_of, consoles_of])
