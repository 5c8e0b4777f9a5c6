"""Hundreds of wrong usages, made from the commands: each is answered with a sentence.

The sentence says what to do instead, or what follows: how the command is called, what it takes, or
which file is not there.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from dedupindex.cli import COMMANDS
from dedupindex.cli.options import Number
from dedupindex.cli.usage_remedies import MISSING_INDEX
from tests.conftest import MakeIndex
from tests.support.commands import ended
from tests.support.paths import ROOT
from tests.unit.cli.test_cli import commands

WRONG = {  # a value that no option of such a type takes
    click.types.IntRange: "x",
    Number: "x",
    click.types.IntParamType: "x",
    click.types.FloatParamType: "x",
    click.types.FloatRange: "x",
    click.types.Choice: "nonsense",
    click.types.File: "no-such-file",
}
REMEDY = re.compile(
    r"[;.] [Dd]id you mean |\b(give|name|make) |\bmakes one\b|\bneed |, as in \S*bin/"
    r"|--help names those that there are$|' is not one of '.*'\.$| is not a number of at least \d"
    r"|; the index, which comes|: no [A-Z].* was found$|^dedupindex: no .* file was found in "
    r"|\bis to be named\b|\bis of [A-Z]+ and [A-Z]+ files$|\bto copy from$"
    r"|: No such file or directory$| does not exist$"
)
OTHER_NAMES = {  # options that take the name of a file or an index, whose type is another one
    "dedup": ["--out", "--index"],
    "resolve": ["--index"],
    "rewrite": ["--out"],
    "undedup": ["--out"],
    "convert": ["--out"],
    "export": ["--out", "--originals", "--hosts"],
    "report": ["--against"],
    "index": ["--copy"],
    "corpus": ["--containers", "--originals"],
}
WRITES_ANYWHERE = "generate_corpus"  # takes the name of a new directory


def usages(name: str, command: click.Command) -> Iterator[list[str]]:
    """Wrong command lines of a command, without its name."""
    arguments = [one for one in command.params if isinstance(one, click.Argument)]
    missing = ["no-such-thing" for _ in arguments]
    if any(one.required for one in arguments):
        yield []
    yield [*missing, "--no-such-option"]
    yield [*missing, "--config", "no-such-file"]
    yield [*missing, "--config", "plain.txt"]
    for option in command.params:
        if not isinstance(option, click.Option) or option.is_flag:
            continue
        yield [*missing, option.opts[-1]]  # without a value
        if type(option.type) in WRONG:
            yield [*missing, f"{option.opts[-1]}={WRONG[type(option.type)]}"]
    if name == WRITES_ANYWHERE:
        return
    if arguments:
        yield missing
        yield ["plain.txt"] * len(arguments)
        yield ["empty"] * len(arguments)
        yield ["bytes"] * len(arguments)
        yield [""] * len(arguments)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("list IDX http://x/", "unexpected argument http://x/; did you mean --url http://x/?"),
        ("purge IDX http://x/", "did you mean --url http://x/?"),
        ("lookup IDX sha1:X", "unexpected argument sha1:X; did you mean --digest sha1:X?"),
        (f"list IDX {'A' * 32}", f"did you mean --digest {'A' * 32}?"),
        ("serve IDX 8484", "unexpected argument 8484; did you mean --port 8484?"),
        ("token IDX --role admin", "--role needs --add\n"),
        ("token IDX --remove x --crawls y", "--crawls needs --add\n"),
        ("token IDX crawl", "unexpected argument crawl; give INDEX and options only\n"),
        ("lookup IDX --host x", "no such option: --host; did you mean bin/list --host?"),
        ("lookup IDX --xyz x", "'--xyz'; bin/lookup --help names those that there are\n"),
        ("index -add x.warc IDX", "no such option: -add; did you mean --add?"),
        ("list IDX -limit=3", "no such option: -limit; did you mean --limit?"),
        ("index -xyz x.warc IDX", "No such option '-x'; bin/index --help names those"),
        ("list IDX --limit three", "'--limit': 'three' is not a number of at least 0\n"),
        ("generate_corpus DIR --duplicates x", "'x' is not a number of at least 0 and at most 1\n"),
        ("serve IDX --port x", "'x' is not a number of at least 0 and at most 65,535\n"),
        ("index", "Missing arguments 'SOURCE...' and 'INDEX', as in bin/index ~/warcs my-index\n"),
        ("index --stats", f"{MISSING_INDEX}\n"),
        ("list IDX --url", "'--url' requires an argument: give --url URL\n"),
        ("resolve m", "Missing option '-o' / '--output': give --output PLAN\n"),
        ("dedup --sample 3 --seed x w", "'x' is not a valid integer; give --seed INTEGER\n"),
        ("lookup", f"{MISSING_INDEX}\n"),
        ("lookup --digest sha1:X", f"{MISSING_INDEX}\n"),
        ("report IDX --crawl a --compare=", "--crawl NAME FILE... INDEX gives files"),
        ("report IDX --crawl a --against x.warc", "--against SOURCE on files: give only one"),
    ],
)
def test_what_was_meant_is_said(words: str, said: str) -> None:
    status, output, messages = ended(*words.split())
    assert (status, output) == (2, "") and said in messages, messages


def test_an_index_that_comes_last_is_recognised(make_index: MakeIndex, tmp_path: Path) -> None:
    index = make_index([])
    address = "http://127.0.0.1:21080/"
    file = tmp_path / "crawl.warc"
    file.touch()
    digest = "A" * 32
    for words, right in (
        (["lookup", digest, index], f"bin/lookup {index} --digest {digest}\n"),
        (["list", "http://x", index], f"bin/list {index} --url http://x\n"),
        (["lookup", address, index], f"bin/lookup {index} --url {address}\n"),
        (["list", "--url", index, address], f"bin/list {index} --url {address}\n"),
        (["impact", "--url", index, address], f"bin/impact {index} --url {address}\n"),
        (["lookup", "--digest", index, digest], f"bin/lookup {index} --digest {digest}\n"),
        (["report", "c1", index], f"bin/report {index} --crawl c1\n"),
        (["report", file, index], f"bin/report {index} {file}\n"),
    ):
        status, _, messages = ended(*words)
        assert status == 2 and "the index comes first: " in messages, messages
        assert messages.endswith(right), messages


@pytest.mark.parametrize("name", COMMANDS)
def test_an_option_of_one_value_is_not_given_twice(name: str) -> None:
    """The last value would be taken: bin/verify --against would compare one of two sources."""
    for option in commands()[name].params:
        if isinstance(option, click.Option) and not option.is_flag and not option.multiple:
            words = [option.opts[0], "a", f"{option.opts[0]}=b"]
            if not option.opts[0].startswith("--"):
                words[1:] = ["a", option.opts[0], "b"]
            status, _, messages = ended(name, *words)
            assert status == 2, words
            assert f"{option.opts[0]} is given twice; it takes one value" in messages, messages


@pytest.mark.parametrize("name", COMMANDS)
def test_no_empty_name_stands_for_the_working_directory(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As from "$DIR" where DIR is not set: bin/verify read all that was below."""
    monkeypatch.chdir(tmp_path)
    command = commands()[name]
    cases = [[""] for one in command.params if isinstance(one, click.Argument)]
    for option in command.params:
        if isinstance(option, click.Option) and isinstance(option.type, click.Path):
            cases.append(["x", option.opts[0], ""])
            cases += [["x", f"{one}="] for one in option.opts if one.startswith("--")]
    cases += [["x", option, ""] for option in OTHER_NAMES.get(name, ())]
    for words in cases:
        status, output, messages = ended(name, *words)
        assert (status, output) == (2, ""), words
        assert "Error: an empty name was given for " in messages, messages
    assert os.listdir(tmp_path) == []
    if name == "verify":
        said = ended(name, "--against", "x", "")[2]
        assert "an empty name was given for PLACE: name a file or directory (" in said


@pytest.mark.parametrize("name", COMMANDS)
def test_wrong_usages_are_answered_with_a_sentence(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("plain.txt").write_text("hello\n")
    Path("bytes").write_bytes(bytes(range(256)))
    Path("empty").mkdir()
    seen = 0
    for words in usages(name, commands()[name]):
        status, output, messages = ended(name, *words)
        seen += 1
        told = f"{name} {words}: {status}\n{output}{messages}"
        assert status not in (0, 1), told
        assert "Traceback" not in messages and "Errno" not in messages, told
        assert messages.strip() or output.strip(), told
        if status == 7:  # the archive is damaged, as the output says
            continue
        *usage, last = messages.strip().splitlines()
        if status == 2:
            called = rf"\S*bin/{name}"
            form = rf"Usage: {called} .*\nTry '{called} --help' for help.\n"
            assert re.fullmatch(form, "\n".join(usage), re.DOTALL), told
            assert last.startswith("Error: "), told
        else:  # one sentence, on one line
            assert not usage and last.startswith("dedupindex: "), told
        assert REMEDY.search(last), told
    assert seen >= 4


@pytest.mark.parametrize(
    "words",
    [
        "completion", "completion nonsense", "completion --no-such-option", "completion bash zsh",
        "demo --no-such-option", "demo nonsense", "demo --out full",
        "cluster-demo --no-such-option", "cluster-demo nonsense", "cluster-demo --out full",
        "cluster-demo --nodes x", "setup --no-such-option", "setup nonsense", "setup ../dev",
        "docs --no-such-option", "docs one two", "docs full/plain.txt", "bench --no-such-option",
        "bench nonsense", "bench --size nonsense", "lock --no-such-option", "lock nonsense",
        "lock --upgrade-package",
    ],
)  # fmt: skip
def test_scripts_of_a_checkout_answer_with_their_own_usage(words: str, tmp_path: Path) -> None:
    """Not with that of a program that they run, and before they do anything."""
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "plain.txt").write_text("hello\n")
    name, *rest = words.split()
    done = subprocess.run(
        [ROOT / "bin" / name, *rest], cwd=tmp_path, capture_output=True, text=True, check=False
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, ""), done
    assert re.search(rf"^[Uu]sage: bin/{name}\b", done.stderr, re.MULTILINE), done.stderr
    assert "Traceback" not in done.stderr and "uv" not in done.stderr.split(), done.stderr
    assert os.listdir(tmp_path) == ["full"]
