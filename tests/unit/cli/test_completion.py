"""TAB completes commands, options, values and files, in real shells and in both forms."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from dedupindex import __version__
from dedupindex.cli.completion import script
from tests.conftest import need
from tests.support.paths import ROOT
from tests.support.terminal import Terminal

START = {
    "bash": ["--norc", "--noprofile", "-i"],
    "zsh": ["-f", "-i"],
    "fish": ["--no-config", "-i"],
}
SWITCH_ON = {
    "bash": "PS1='re''ady>'; bind 'set enable-bracketed-paste off'",
    "zsh": "PS1='re''ady>'; unsetopt PROMPT_SP; autoload -U compinit; compinit -u -D",
    "fish": "function fish_prompt; echo -n re''ady'>'; end",
}


@pytest.mark.parametrize("shell", START)
def test_a_shell_completes_both_forms(shell: str, tmp_path: Path) -> None:
    """What is completed is run: an option that the shell completed prints the version."""
    need(shell, found=shutil.which(shell) is not None)
    installed = tmp_path / "bin"  # not the checkout's: a command on PATH, as pip makes it
    installed.mkdir()
    (installed / "dedupindex").symlink_to(Path(sys.executable).parent / "dedupindex")
    (tmp_path / "only-index").touch()
    loaded = tmp_path / "completion"
    printed = subprocess.run([ROOT / "bin" / "completion", shell], capture_output=True, check=True)
    loaded.write_bytes(printed.stdout)
    environment = {
        "TERM": "xterm", "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path),
        "XDG_DATA_HOME": str(tmp_path), "PATH": f"{installed}:{os.environ['PATH']}",
    }  # fmt: skip
    with Terminal([shell, *START[shell]], 200, environment, ROOT) as terminal:
        terminal.type(f"{SWITCH_ON[shell]}\n")
        terminal.until("ready>")
        terminal.type(f"source {loaded}; echo lo''aded\n")
        terminal.until("loaded")
        for typed in ("bin/index --vers\t", "dedupindex ser\t--vers\t", "./bin/plan --vers\t"):
            terminal.until("ready>")
            terminal.type(typed)
            terminal.until("--version")
            terminal.type("\n")
            terminal.until(f"dedupindex {__version__}")
        terminal.until("ready>")
        terminal.type(f"bin/list {tmp_path}/only\t")  # a file, where an index is to be named
        terminal.until("-index")
        terminal.type("\x15exit\n")
        terminal.until()


def completed(words: str) -> list[str]:
    """What bash is offered for the last of some words."""
    asked = {"_DEDUPINDEX_COMPLETE": "bash_complete", "COMP_WORDS": words}
    done = subprocess.run(
        [sys.executable, "-m", "dedupindex"], capture_output=True, text=True, check=True,
        env={**os.environ, **asked, "COMP_CWORD": str(words.count(" "))},
    )  # fmt: skip
    assert done.stderr == ""
    return [line.partition("\t")[2].partition("\t")[0] for line in done.stdout.split("\n") if line]


def test_what_is_offered() -> None:
    assert completed("dedupindex re") == ["report", "rehearse", "resolve", "rewrite"]
    assert completed("/anywhere/bin/index --keep l") == ["latest"]
    assert completed("dedupindex nonsense --ke") == []  # wrong: nothing, and quiet
    assert "--in-place" in completed("bin/rewrite a-plan --in")


def test_the_package_has_the_command_of_the_checkout() -> None:
    run = partial(subprocess.run, capture_output=True, check=True)
    program = [sys.executable, "-m", "dedupindex"]
    as_option, as_command = (
        run([*program, word, "bash"]).stdout for word in ("--completion", "completion")
    )
    assert as_option == as_command == run([ROOT / "bin" / "completion", "bash"]).stdout != b""


def test_the_script_trusts_no_directory() -> None:
    """TAB in a directory that has a ``dedupindex.py`` does not run it."""
    assert " -P -m dedupindex " in script("bash")
