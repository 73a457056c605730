"""Configs that an attacker would write, and a process that has `assay check` look at each of them.

`corpus` makes the configs: targets of every kind in every place of a config and in every language,
texts that grow or nest without an end, values that belong elsewhere, encodings, references, files
that are no files. As a program it checks the corpus in a folder, each config in a process of its
own, and prints what each took and said as JSON.
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bypass
from assay.config import own_targets, torch_targets
from assay.config.sources.positions import MAX_BYTES, MAX_VALUES
from assay.config.variants import MAX_VARIANTS
from assay.core import schema
from assay.core.keys import Key
from languages import WRITERS

SUFFIXES = (".toml", ".json", ".yaml", ".ini")
MARK = "PWNED"
SHELL = f"touch {MARK}"
DEADLINE_S = 120
CPU_S = 4
"""After which a check is killed: twice what it may take, for machines that are slower."""
MEMORY_BYTES = 4 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One attack: what is written where, or made there, and what is typed after `assay check FILE`.

    `classes` are those of the threat model that it belongs to.
    """

    name: str
    file: str
    classes: str
    content: bytes | Callable[[Path], object] = b""
    arguments: tuple[str, ...] = ()

    def place(self, folder: Path) -> Path:
        path = folder / self.file
        if callable(self.content):
            self.content(path)
        elif not Path(self.file).is_absolute():
            path.write_bytes(self.content)
        return path


def base() -> dict[str, Any]:
    """A config that is fine, and that runs no code of the user's."""
    rows = [[i, i % 3] for i in range(4)]
    collate = {"type": "torch.utils.data.default_collate", "_partial_": True}
    source = {"type": "assay.engine.data.map_style.SequenceWrapper", "datapipe": rows}
    return {
        "model": {"type": "torch.nn.Embedding", "num_embeddings": 4, "embedding_dim": 3},
        "process": {
            "type": "assay.engine.Supervised",
            "criterion": {"type": "torch.nn.CrossEntropyLoss"},
        },
        "optimizer": {"type": "torch.optim.SGD", "lr": 0.01},
        "data": {"train": {"source": source, "batch_size": 2, "collate": collate}},
        "train": {"steps": 2},
    }


def corpus() -> list[Case]:
    """Return every attack; the same ones each time."""
    makers = (
        targets,
        compositions,
        values,
        references,
        sizes,
        growth,
        yaml_tags,
        texts,
        no_files,
        typed,
        programs,
    )
    return [case for maker in makers for case in maker()]


# --- what a config names ---------------------------------------------------------------------------------------------

PLACES: tuple[tuple[str, ...], ...] = (
    ("model",),
    ("process",),
    ("process", "criterion"),
    ("optimizer",),
    ("schedule",),
    ("task",),
    ("data", "train", "source"),
    ("data", "train", "sampler"),
    ("data", "train", "collate"),
    ("data", "train", "worker_init"),
    ("data", "valid", "source"),
    ("process", "metrics", "m"),
    ("process", "batch_hook"),
    ("backward",),
    ("criterion",),
    ("plugins",),
    ("evaluate", "pipes"),
    ("model", "deeper"),
    ("mine",),
    ("variants", "v", "model"),
    ("sweep", "model.type"),
)
OPTIONS = ((), ("--strict",), ("--defaults",), ("--list",), ("--json",))


def targets() -> Iterator[Case]:
    """Yield every target of the list of bypasses, and every forbidden one of torch and assay."""
    named = [
        *bypass.REFUSED,
        *(name for name in own_targets.NEVER),
        *(name.rstrip(".") for name in (*torch_targets.NEVER, *torch_targets.ON_TRUST)),
    ]
    places, suffixes = itertools.cycle(PLACES), itertools.cycle(SUFFIXES)
    options = itertools.cycle(OPTIONS)
    for number, target in enumerate(dict.fromkeys(named)):
        place, suffix = next(places), next(suffixes)
        tree = with_call(base(), place, {"type": target, "args": [SHELL]})
        name = f"target {target!r} at {'.'.join(place)}"
        yield Case(
            name=name,
            file=f"target{number}{suffix}",
            classes="S3 S4" if target.startswith(("model", "assay")) else "S1 S4",
            content=WRITERS[suffix](tree).encode(),
            arguments=next(options),
        )


def with_call(tree: dict[str, Any], place: Sequence[str], call: dict[str, Any]) -> dict[str, Any]:
    if place[0] == "sweep":
        return {**tree, "sweep": {place[1]: [call["type"], "torch.nn.Linear"]}}
    if place[0] == "variants":
        return {**tree, "variants": {place[1]: {f"{place[2]}.type": call["type"]}}}
    at: Any = tree
    for key in place[:-1]:
        at = at.setdefault(key, {})
    at[place[-1]] = [call] if place[-1] in ("plugins", "pipes") else call
    if place == ("mine",):
        tree["process"]["mine"] = "@mine"
    return tree


def compositions() -> Iterator[Case]:
    """Attacks that once ran a command, and factories of what must not be called."""
    import tomllib

    for path in sorted((Path(__file__).parent / "configs").glob("*.toml")):
        tree = tomllib.loads(path.read_text())
        for suffix in SUFFIXES:
            content = WRITERS[suffix](tree).encode()
            yield Case(
                name=f"{path.stem} in {suffix}",
                file=f"{path.stem}{suffix}",
                classes="S1 S4",
                content=content,
            )
    for number, name in enumerate(
        ("os.system", "builtins.eval", "subprocess.run", "torch.load", "model.system")
    ):
        for place, suffix in zip(("collate", "worker_init"), SUFFIXES, strict=False):
            tree = base()
            tree["data"]["train"][place] = {"type": name, "_partial_": True}
            yield Case(
                name=f"a factory of {name} as {place}",
                file=f"factory{number}{place}{suffix}",
                classes="S4",
                content=WRITERS[suffix](tree).encode(),
            )


def values() -> Iterator[Case]:
    """A call where a number, text, time or list belongs; and numbers that no run can have."""
    calls = itertools.cycle(
        ({"type": "os.system", "args": [SHELL]}, {"__class__": "os._wrap_close"}, [[[SHELL]]])
    )
    suffixes = itertools.cycle(SUFFIXES)
    number = 0
    for path, key in scalars():
        made = {**base()}
        for value in (next(calls), *(VALUES if key.kind in ("int", "float") else ())):
            tree = put(made, path, value)
            suffix = next(suffixes)
            number += 1
            yield Case(
                name=f"{'.'.join(path)} = {str(value)[:40]}",
                file=f"value{number}{suffix}",
                classes="S4 S17",
                content=WRITERS[suffix](tree).encode(),
            )


VALUES = (-(10**30), float("nan"), "1e400", "__import__('os').system('id')")


def scalars() -> Iterator[tuple[tuple[str, ...], Key]]:
    todo = [((key.name,), key) for key in schema.SECTIONS]
    while todo:
        path, key = todo.pop(0)
        if key.kind in ("table", "tables"):
            inner = (*path, "train") if key.kind == "tables" else path
            todo += [((*inner, each.name), each) for each in key.keys]
        elif key.kind not in ("call", "calls", "texts", "numbers"):
            yield path, key


def put(tree: Mapping[str, Any], path: Sequence[str], value: Any) -> dict[str, Any]:
    """Return a copy of a tree with `value` at `path`."""
    if not path:
        return value  # type: ignore[no-any-return]
    inner = tree.get(path[0])
    return {**tree, path[0]: put(inner if isinstance(inner, dict) else {}, path[1:], value)}


REFERENCES = (
    *(
        "${model.__class__}",
        "${model.forward.__globals__}",
        "${__import__('os').system('id')}",
        "${eval:1}",
    ),
    *(
        "${oc.env:HOME}",
        "${python:os.system}",
        "${file:/etc/passwd}",
        "${include:/etc/passwd}",
        "${}",
        "${ }",
        "${",
    ),
    *(
        "${.}",
        "${..}",
        "${...}",
        "${.......x}",
        "${model}",
        "${model.num_embeddings}",
        "@os.system",
        "@",
        "@model",
    ),
    *(
        "@model.forward.__globals__",
        "@model.__init__",
        "@process.criterion.forward",
        "${random:int:0}",
    ),
    *(
        "${random:int:9:0}",
        "${random:exec:0:1}",
        "${random:int:0:1e400}",
        "${device:os.system}",
        "${device:count:x}",
    ),
    *(
        "${length:../../etc}",
        "${length:data.train.source}",
        "${global:../../etc/passwd}",
        "${global:}",
        "${env:}",
    ),
    *(
        "${env:ASSAY_NOT_SET}",
        "${env:HOME}",
        "${train.steps}${train.steps}x",
        "$(id)",
        "`id`",
        "{{7*7}}",
        "%(x)s",
    ),
    *(
        "${model.num_embeddings.real}",
        "${train.0}",
        "${data.train.source.datapipe.-1}",
        "${nothing:${train.steps}}",
    ),
)


def references() -> Iterator[Case]:
    """Yield references to code, files, the environment or themselves in place of a number."""
    for number, text in enumerate(REFERENCES):
        for suffix in (SUFFIXES[number % 4], SUFFIXES[(number + 1) % 4]):
            tree = put(base(), ("model", "num_embeddings"), text)
            yield Case(
                name=f"reference {text} in {suffix}",
                file=f"reference{number}{suffix}",
                classes="S5",
                content=WRITERS[suffix](tree).encode(),
            )


# --- what grows without an end ---------------------------------------------------------------------------------------

DEEP = 10_000
NESTED: dict[str, dict[str, Callable[[int], str]]] = {
    "lists": {
        ".toml": lambda n: "a = " + "[" * n + "]" * n,
        ".json": lambda n: '{"a": ' + "[" * n + "]" * n + "}",
        ".yaml": lambda n: "a: " + "[" * n + "]" * n,
        ".ini": lambda n: "a = " + "[" * n + "]" * n,
    },
    "lists that are not closed": {
        ".toml": lambda n: "a = " + "[" * n,
        ".json": lambda n: '{"a": ' + "[" * n,
        ".yaml": lambda n: "a: " + "[" * n,
        ".ini": lambda n: "a = " + "[" * n,
    },
    "tables": {
        ".toml": lambda n: "a = " + "{x = " * n + "1" + "}" * n,
        ".json": lambda n: '{"a": ' * n + "1" + "}" * n,
        ".yaml": lambda n: "{a: " * n + "1" + "}" * n,
        ".ini": lambda n: "a = " + "{x = " * n + "1" + "}" * n,
    },
    "names": {
        ".toml": lambda n: "a" + ".a" * n + " = 1",
        ".yaml": lambda n: "".join(" " * i + "a:\n" for i in range(min(n, 3000))),
        ".ini": lambda n: "[" + "a." * n + "a]\nx = 1\n",
    },
    "quotes and escapes": {
        ".toml": lambda n: 'a = "' + '\\"' * n,
        ".json": lambda n: '{"a": "' + '\\"' * n,
        ".yaml": lambda n: 'a: "' + '\\"' * n,
        ".ini": lambda n: "a = '" + "\\'" * n,
    },
    "comments": {
        ".toml": lambda n: "# x\n" * n + "a",
        ".json": lambda n: "/*" * n,
        ".yaml": lambda n: "# x\n" * n + "a: [",
        ".ini": lambda n: "; x\n" * n + "[",
    },
    "brackets of a header": {
        ".toml": lambda n: "[" * n + "a" + "]" * n,
        ".ini": lambda n: "[" * n + "a" + "]" * n,
        ".yaml": lambda n: "? " * n + "a",
        ".json": lambda n: "[" * n,
    },
    "blanks": {
        ".toml": lambda n: "a =" + " \t" * n,
        ".json": lambda n: '{"a":' + " \n" * n,
        ".yaml": lambda n: "a:\n" + " " * n + "- [",
        ".ini": lambda n: "[a" + " " * n,
    },
    "one number": {
        ".toml": lambda n: "a = " + "9" * n,
        ".json": lambda n: '{"a": ' + "9" * n + "}",
        ".yaml": lambda n: "a: " + "9" * n,
        ".ini": lambda n: "a = " + "9" * n,
    },
    "one word": {
        ".toml": lambda n: "a" * n,
        ".json": lambda n: "{" + "a" * n,
        ".yaml": lambda n: "{" + "a" * n,
        ".ini": lambda n: "a" * n,
    },
}


def sizes() -> Iterator[Case]:
    """Texts that nest, go on and on, or hold more than a machine wants to hold."""
    for (kind, by_suffix), n in itertools.product(NESTED.items(), (1_001, DEEP, 300_000)):
        for suffix, text in by_suffix.items():
            name = f"{n:,} {kind} in {suffix}"
            content = text(n).encode()
            yield Case(
                name=name, file=f"nested-{kind}-{n}{suffix}", classes="S5 S17", content=content
            )
    for suffix, (head, item, tail) in {
        ".toml": ("a = [", "0,", "0]"),
        ".json": ('{"a": [', "0,", "0]}"),
        ".yaml": ("a: [", "0,", "0]"),
        ".ini": ("a = [", "0,", "0]"),
    }.items():
        content = (head + item * (2 * MAX_VALUES) + tail).encode()
        yield Case(
            name=f"too many values in {suffix}",
            file=f"values{suffix}",
            classes="S17",
            content=content,
        )
        content = head.encode() + b" " * (MAX_BYTES + 1) + tail.encode()
        yield Case(
            name=f"too many bytes in {suffix}",
            file=f"bytes{suffix}",
            classes="S17",
            content=content,
        )


ALIASES = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 30)
)
MERGES = "a0: &a0 {k: 1}\n" + "".join(
    f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}], k{i}: {i}}}\n" for i in range(1, 30)
)
DOUBLED = {"a0": [1] * 9, **{f"a{i}": [f"${{t.a{i - 1}}}"] * 9 for i in range(1, 30)}}
TOML = WRITERS[".toml"](base()) + "\n"


def growth() -> Iterator[Case]:
    """Yield short configs that ask for a billion values, as many configs, or as many mistakes."""
    texts = {
        "aliases.yaml": ALIASES,
        "merges.yaml": MERGES,
        "circle.yaml": "a: &a {b: *a}\n",
        "circle-of-lists.yaml": "a: &a [*a, *a]\n",
        "anchors.yaml": "".join(f"a{i}: &x {i}\n" for i in range(20_000)) + "b: *y\n",
        "documents.yaml": "--- {a: 1}\n" * 20_000,
        "interpolation.ini": "[s]\na0 = xxxxxxxxx\n"
        + "".join(f"a{i} = {f'%(a{i - 1})s' * 9}\n" for i in range(1, 30)),
        "interpolation-circle.ini": "a = %(b)s\nb = %(a)s\n",
        "doubled-text.toml": TOML
        + "[t]\na0 = 'xxxxxxxx'\n"
        + "".join(f'a{i} = "{f"${{t.a{i - 1}}}" * 9}"\n' for i in range(1, 30)),
        "doubled-table.json": json.dumps({**base(), "t": DOUBLED}),
        "reference-chain.toml": TOML
        + "[t]\n"
        + "".join(f'a{i} = "${{t.a{i + 1}}}"\n' for i in range(5_000)),
        "reference-circle.toml": TOML
        + "[t]\n"
        + "".join(f'a{i} = "${{t.a{(i + 1) % 5_000}}}"\n' for i in range(5_000)),
        "objects-circle.toml": TOML
        + "".join(
            f'[o{i}]\ntype = "torch.nn.ReLU"\ninplace = "@o{(i + 1) % 50}"\n' for i in range(50)
        ),
        "sweep-product.toml": TOML
        + "[sweep]\n"
        + "".join(f'"optimizer.k{i}" = {list(range(100))}\n' for i in range(10)),
        "sweep-strings.toml": TOML + "[sweep]\n'train.steps' = '" + "1," * 100_000 + "1'\n",
        "sweep-long.toml": TOML + f"[sweep]\n'train.steps' = {list(range(100_000))}\n",
        "variants.toml": TOML + "".join(f"[variants.v{i}]\n" for i in range(MAX_VARIANTS + 1)),
        "variants-wrong.toml": TOML
        + "".join(f"[variants.v{i}]\n'optimzer.lr' = {i}\n" for i in range(MAX_VARIANTS)),
        "variants-large.toml": TOML
        + "".join(f"[variants.v{i}]\n'model.k{i}' = {i}\n" for i in range(MAX_VARIANTS)),
        "sections.toml": TOML + "".join(f"[section{i}]\na = 1\n" for i in range(16_000)),
        "sections-wrong.toml": TOML + "".join(f"[trian{i}]\na = 1\n" for i in range(16_000)),
        "keys-wrong.toml": TOML + "[display]\n" + "".join(f"evrey{i} = 1\n" for i in range(16_000)),
        "arguments-wrong.toml": TOML.replace(
            "num_embeddings = 4",
            "num_embeddings = 4\n" + "".join(f"num_embeding{i} = 1\n" for i in range(16_000)),
        ),
        "targets-wrong.toml": TOML
        + "".join(f'[m{i}]\ntype = "torch.nn.Lineer{i}"\n' for i in range(5_000)),
        "plugins-wrong.toml": TOML
        + "".join(f'[[plugins]]\ntype = "torch.nn.Lineer{i}"\n' for i in range(5_000)),
        "modules-wrong.toml": TOML
        + "".join(f'[m{i}]\ntype = "modle{i}.Net"\n' for i in range(5_000)),
        "user-targets-wrong.toml": TOML
        + "".join(f'[m{i}]\ntype = "model.Nett{i}"\n' for i in range(2_000)),
        "references-wrong.toml": TOML
        + "[u]\n"
        + "".join(f'a{i} = "${{modle.width{i}}}"\n' for i in range(16_000)),
        "objects-wrong.toml": TOML
        + "[u]\n"
        + "".join(f'a{i} = "@modle{i}"\n' for i in range(16_000)),
        "duplicates.toml": TOML + "".join("[train]\nsteps = 1\n" for _ in range(20_000)),
        "duplicates.json": "{" + ",".join('"train": {"steps": 1}' for _ in range(20_000)) + "}",
        "duplicates.yaml": "train: {steps: 1}\n" * 20_000,
        "duplicates.ini": "[train]\nsteps = 1\n" * 20_000,
        "tables-of-tables.toml": "[[a]]\n[[a.b]]\n" * 20_000 + "[a.b.c]\n[a.b.c]\n",
        "arguments-deep.toml": TOML.replace(
            "num_embeddings = 4", "num_embeddings = " + "[" * 150 + "]" * 150
        ),
        "models-deep.json": json.dumps({**base(), "model": nested(60)}),
        "models-wide.json": json.dumps(
            {
                **base(),
                "model": {
                    "type": "torch.nn.Sequential",
                    "args": [{"type": "torch.nn.ReLU", "inplace": "x"}] * 5_000,
                },
            }
        ),
        "long-name-of-argument.toml": TOML.replace(
            "num_embeddings = 4", "num_embeddings = 4\n" + "k" * 900_000 + " = 1"
        ),
        "long-target.json": json.dumps(
            {**base(), "model": {"type": "torch." + "nn." * 100_000 + "Linear"}}
        ),
        "long-user-target.json": json.dumps(
            {**base(), "model": {"type": "model." + "a" * 1_000_000}}
        ),
        "long-value.json": json.dumps({**base(), "train": {"steps": "9" * 5_000_000}}),
        "long-period.json": json.dumps({**base(), "evaluate": {"every": "1" * 500_000 + " steps"}}),
        "long-duration.json": json.dumps({**base(), "train": {"time": "1 " * 500_000}}),
        "long-choice.json": json.dumps(
            {**base(), "train": {"steps": 1, "precision": "fp" * 500_000}}
        ),
        "long-reference.json": json.dumps({**base(), "tag": "${" + "a." * 300_000 + "a}"}),
        "many-references.json": json.dumps({**base(), "tag": "${nothing}" * 100_000}),
        "open-references.json": json.dumps({**base(), "tag": "${" * 300_000}),
    }
    for name, text in texts.items():
        yield Case(name=name, file=f"growth-{name}", classes="S5 S17", content=text.encode())


def nested(depth: int) -> dict[str, Any]:
    inner: Any = "no module"
    for _ in range(depth):
        inner = {"type": "torch.nn.Sequential", "args": [inner], "no": 1}
    return inner  # type: ignore[no-any-return]


# --- texts -----------------------------------------------------------------------------------------------------------

TAGS = (
    *(
        "!!python/object/apply:os.system ['touch PWNED']",
        "!!python/object/new:os.system ['touch PWNED']",
    ),
    *(
        "!!python/name:os.system",
        "!!python/module:os",
        "!!python/object:subprocess.Popen {}",
        "!!python/tuple [1]",
    ),
    *(
        "!!python/object/apply:subprocess.check_output [[touch, PWNED]]",
        "!!python/object/new:type {args: [z, [], {}]}",
    ),
    *(
        "!!binary AAAA",
        "!!set {a}",
        "!!omap [a: 1]",
        "!include /etc/passwd",
        "!env HOME",
        "!ENV ${HOME}",
        "!join [a]",
    ),
    *(
        "!!timestamp 2001-01-01",
        "!<tag:yaml.org,2002:python/name:os.system> x",
        "!os.system x",
        "!torch.load x",
    ),
    *("!!map [1]", "!!int x", "!!float x", "!!bool x", "!!merge x"),
)


def yaml_tags() -> Iterator[Case]:
    """Tags of YAML, by which its libraries have called whatever was named."""
    for number, tag in enumerate(TAGS):
        for where in ("model", "tag"):
            text = WRITERS[".yaml"]({key: value for key, value in base().items() if key != where})
            name = f"{tag} as {where}"
            content = f"{text}{where}: {tag}\n".encode()
            yield Case(name=name, file=f"tag{number}{where}.yaml", classes="S4 S5", content=content)


STRANGE = {
    "no UTF-8": b"\xff\xfe",
    "a NUL": b"\0",
    "half of a character": b"\xe2\x82",
    "a surrogate": b"\xed\xa0\x80",
    "an overlong slash": b"\xc0\xaf",
    "UTF-16": "tag = 1\n".encode("utf-16"),
    "an escape of the terminal": b"\x1b]0;pwned\x07\x1b[2J",
    "a C1 control": "\x9b2J".encode(),
    "a backspace": b"\x08\x08\x08",
    "letters from right to left": "\u202etxt.exe\u2066".encode(),
    "an invisible letter": "\u200b\ufeff".encode(),
    "a line separator": "\u2028\u2029\x0b\x0c".encode(),
}


def texts() -> Iterator[Case]:
    """Yield undecodable bytes, and terminal control codes in keys, values, names, stray words."""
    keys: dict[str, tuple[bytes, ...]] = {
        ".toml": (
            b'["%s"]\na = 1\n',
            b'[train]\nsteps = "%s"\n',
            b'[model]\ntype = "model.%s"\n',
            b"%s\n[x\n",
        ),
        ".json": (
            b'{"%s": {"a": 1}}',
            b'{"train": {"steps": "%s"}}',
            b'{"model": {"type": "model.%s"}}',
            b"{%s: [}",
        ),
        ".yaml": (
            b'"%s": {a: 1}\n',
            b'train: {steps: "%s"}\n',
            b'model: {type: "model.%s"}\n',
            b"%s: [}\n",
        ),
        ".ini": (
            b"[%s]\na = 1\n",
            b"[train]\nsteps = %s\n",
            b"[model]\ntype = model.%s\n",
            b"%s\n[x\n",
        ),
    }
    for (at, (what, raw)), (suffix, forms) in itertools.product(
        enumerate(STRANGE.items()), keys.items()
    ):
        for number, form in enumerate(forms):
            if what == "an invisible letter" and number == 3:
                continue  # a mark at the begin of a file is allowed
            name = f"{what} in {suffix}, form {number}"
            content = form.replace(b"%s", raw)
            yield Case(
                name=name, file=f"text{at}-{number}{suffix}", classes="S21 S24", content=content
            )


# --- what is no file -------------------------------------------------------------------------------------------------


def no_files() -> Iterator[Case]:
    """Pipes, devices, sockets, folders, links and files of a terabyte in the place of a config."""

    def listen(path: Path) -> None:
        with socket.socket(socket.AF_UNIX) as made:
            here = os.getcwd()
            os.chdir(path.parent)  # the name of a socket has a hundred letters
            try:
                made.bind(path.name)
            finally:
                os.chdir(here)

    def sparse(path: Path) -> None:
        with path.open("wb") as file:
            file.truncate(1 << 40)

    def linked_to(other: str) -> Callable[[Path], None]:
        return lambda path: path.symlink_to(other)

    for suffix in (*SUFFIXES, ".py"):
        made: dict[str, Callable[[Path], object]] = {
            "pipe": os.mkfifo,
            "socket": listen,
            "folder": os.mkdir,
            "sparse": sparse,
            "zeros": linked_to("/dev/zero"),
            "random": linked_to("/dev/urandom"),
            "terminal": linked_to("/dev/tty"),
            "memory": linked_to("/proc/self/mem"),
            "loop": linked_to(f"loop{suffix}"),
            "nothing": linked_to("nothing"),
        }
        for kind, make in made.items():
            yield Case(
                name=f"{kind}{suffix}", file=f"{kind}{suffix}", classes="S9 S17", content=make
            )
    for path in (
        "/dev/zero",
        "/dev/full",
        "/proc/kcore",
        "/etc/passwd",
        "/",
        "/dev/fd/0",
        "/etc/shadow",
    ):
        yield Case(name=path, file=path, classes="S9 S17")
    for name in (
        "x" * 300,
        "a/" * 3000 + "b",
        "-",
        "--",
        "",
        "\0",
        "no\nline",
        "..",
        "~",
        "run:last",
        "http://a/b",
    ):
        yield Case(
            name=f"named {name[:20]!r}", file="none", classes="S7 S17", arguments=(f"={name}",)
        )


# --- what is typed ---------------------------------------------------------------------------------------------------

TYPED = (
    *(
        "model.type=os.system",
        "model.type=builtins:exec",
        "model.__class__=os.system",
        "model.type=@os.system",
    ),
    *(
        "optimizer.lr=__import__('os').system('touch PWNED')",
        "optimizer.lr=${eval:1}",
        "=x",
        "..=1",
        "a..b=1",
        ".=.",
    ),
    *(
        "train.steps=1e400",
        "train.steps=nan",
        "train.steps=-1",
        "seed=-1",
        "seed=99999999999999999999999",
        "seed=1.5",
    ),
    *(
        "train.steps=[[[[",
        "train.steps={",
        'train.steps="',
        "train.steps='",
        "train.steps=\x1b[2J",
        "trian.steps=1",
    ),
    *(
        "data.train.workers=999999999999999999999999",
        "threads=0",
        "threads=os.system",
        "plugins=[os.system]",
    ),
    *(
        "plugins.0.type=os.system",
        "data.train.source.type=torch.load",
        "process.criterion.type=model.system",
    ),
    *(
        "variants.x=1",
        "sweep.x=1",
        "include=/etc/passwd",
        "defaults=/etc/passwd",
        "_target_=os.system",
    ),
    *(
        "model._target_=os.system",
        "model.args=[touch PWNED]",
        "model.args.99999999=1",
        "optimizer.lr+=1",
    ),
    *("--nothing", "--layout=data=99999999999999999999", "--memory=1e400", "--batch=((((("),
)


def typed() -> Iterator[Case]:
    """Overrides and options that reach for more than keys of the config."""
    long = (
        "a" + ".a" * DEEP + "=1",
        "train.steps=" + "9" * 100_000,
        "train.steps=" + "[" * 100_000,
        "x" * 100_000 + "=1",
        "train.steps=" + "${" * 30_000,
    )
    for number, text in enumerate((*TYPED, *long)):
        content = WRITERS[".toml"](base()).encode()
        name = f"typed {text[:60]!r}"
        yield Case(
            name=name,
            file=f"typed{number}.toml",
            classes="S4 S5",
            content=content,
            arguments=(text,),
        )


def programs() -> Iterator[Case]:
    """Yield configs in Python: with --shape none runs, and a mistake in one is its author's."""
    texts = {
        "shell": f"import os\nos.system({SHELL!r})\nmodel = dict(type='torch.nn.ReLU')\n",
        "circle": "model = {}\nmodel['x'] = model\n",
        "deep": "model = {}\nfor _ in range(10_000):\n    model = {'x': model}\n",
        "wide": "a = ['x'] * 9\nfor _ in range(30):\n    a = [a] * 9\nmodel = {'x': a}\n",
    }
    for name, text in texts.items():
        for arguments in (("--shape",), ("--shape", "--json")):
            file = f"program-{name}{len(arguments)}.py"
            yield Case(
                name=f"{name} {arguments}",
                file=file,
                classes="S3",
                content=text.encode(),
                arguments=arguments,
            )
        if name != "shell":
            yield Case(name=name, file=f"program-{name}.py", classes="S17", content=text.encode())


# --- the other process -----------------------------------------------------------------------------------------------


def check(case: Case, folder: Path) -> dict[str, Any]:
    """What `assay check` says of one config, and what that took: in a process of its own."""
    path = case.place(folder)
    file, arguments = str(path) if os.path.isabs(case.file) else case.file, list(case.arguments)
    if arguments and case.file == "none":
        file, arguments = arguments[0][1:], []
    reads, writes = os.pipe()
    begin = time.monotonic()
    pid = os.fork()
    if pid == 0:
        os.close(reads)
        code = 99
        try:
            code = _checked(file, arguments, writes)
        finally:
            os._exit(code)
    os.close(writes)
    said, is_late = b"", False
    while True:
        left = begin + DEADLINE_S - time.monotonic()
        ready, _, _ = select.select([reads], [], [], max(left, 0))
        if not ready:
            os.kill(pid, signal.SIGKILL)
            is_late = True
            break
        piece = os.read(reads, 1 << 16)
        if not piece:
            break
        said = (said + piece)[: 1 << 20]
    os.close(reads)
    _, status, used = os.wait4(pid, 0)
    return {
        "name": case.name,
        "code": os.waitstatus_to_exitcode(status),
        "said": said.decode("utf-8", "replace"),
        "hangs": is_late,
        "cpu_s": round(used.ru_utime + used.ru_stime, 3),
        "rss_mb": used.ru_maxrss // 1000,
    }


def _checked(file: str, arguments: Sequence[str], out: int) -> int:
    from assay.cli.main import main

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.close(out)
    sys.stdout, sys.stderr = (
        os.fdopen(number, "w", encoding="utf-8", errors="replace") for number in (1, 2)
    )
    code = main(["check", file, *arguments])
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def work(folder: Path) -> dict[str, Any]:
    """Check what is good in every language, and the corpus."""
    bypass.write(folder)
    good = [
        Case(
            name=f"good{suffix}",
            file=f"good{suffix}",
            classes="",
            content=WRITERS[suffix](base()).encode(),
        )
        for suffix in SUFFIXES
    ]
    warm_up(good[0].place(folder))
    return {
        "good": [check(case, folder) for case in good],
        "bad": [check(case, folder) for case in corpus()],
        "marks": [str(path) for path in folder.rglob(f"{MARK}*")],
    }


def warm_up(file: Path) -> None:
    """Import what a check imports late, so that each config takes what it takes for itself."""
    import torch

    import assay.cli.check
    import assay.engine.data.audit
    import assay.plugins  # noqa: F401
    from assay.compose import Examiner
    from assay.config import open_config

    torch.set_num_threads(1)
    Examiner(strict=True).examine(open_config(file))


def main() -> int:
    folder = Path(os.path.realpath(sys.argv[1]))
    os.chdir(folder)
    os.environ |= {
        name: str(folder / name) for name in ("XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME")
    }
    os.environ |= {"NO_COLOR": "1", "COLUMNS": "80"}
    json.dump(work(folder), sys.stdout)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
