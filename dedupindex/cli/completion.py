"""Completion of commands, options and file names by TAB in bash, zsh and fish.

`script` returns what a shell has to run. From then on the shell asks this program, with the words
typed so far in its environment: click, whose classes read these words, finds what may come next.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    add_completion_class,
    split_arg_string,
)

from dedupindex.cli import COMMANDS
from dedupindex.errors import SCRIPTS, DedupError

VARIABLE = "_DEDUPINDEX_COMPLETE"  # where click expects what is asked
_ASK = "COMP_WORDS={words} COMP_CWORD={word} {variable}={shell}_complete {program} 2>/dev/null"
_BASH = """\
_dedupindex() {{
    local kind value help
    COMPREPLY=()
    while IFS=$'\\t' read -r kind value help; do
        case $kind in
            file) compopt -o default ;;
            dir) compopt -o dirnames ;;
            plain) COMPREPLY+=("$value") ;;
        esac
    done < <(IFS=$'\\n'; {ask})
}}
complete -o nosort -F _dedupindex dedupindex {names}
"""
_ZSH = """\
#compdef dedupindex
_dedupindex() {{
    local kind value help
    local -a found
    while IFS=$'\\t' read -r kind value help; do
        case $kind in
            file) _path_files -f ;;
            dir) _path_files -/ ;;
            plain) found+=("${{value//:/\\\\:}}${{help:+:$help}}") ;;
        esac
    done < <({ask})
    (( $#found )) && _describe -V dedupindex found -U
}}
compdef _dedupindex dedupindex {names}
"""
_FISH = """\
function _dedupindex
    {ask} | while read --local --delimiter \\t kind value help
        switch $kind
            case file
                __fish_complete_path $value
            case dir
                __fish_complete_directories $value
            case plain
                printf '%s\\t%s\\n' $value $help
        end
    end
end
complete --no-files --command dedupindex --arguments '(_dedupindex)'
{names}
"""
_SHELLS = {
    "bash": (_BASH, '"${COMP_WORDS[*]}"', "$COMP_CWORD"),
    "zsh": (_ZSH, '"${words[*]}"', "$((CURRENT - 1))"),
    "fish": (_FISH, "(commandline -cp)", "(commandline -t)"),
}


def script(shell: str) -> str:
    """Return what switches completion on in a shell; raises `UsageError`."""
    if shell not in _SHELLS:
        raise click.UsageError(f"there is no completion for {shell!r}, but for bash, zsh and fish")
    template, words, word = _SHELLS[shell]
    # -P: not what a directory calls dedupindex in which somebody types TAB
    program = shlex.join([sys.executable, "-P", "-m", "dedupindex"])
    ask = _ASK.format(words=words, word=word, variable=VARIABLE, shell=shell, program=program)
    return template.format(ask=ask, names=_scripts(shell) if SCRIPTS else "")


def _scripts(shell: str) -> str:
    """Return the names of the scripts of a checkout, as a shell takes them."""
    assert SCRIPTS is not None
    if shell == "fish":
        option = "--no-files --arguments '(_dedupindex)'"
        paths = (shlex.quote(str(SCRIPTS / name)) for name in COMMANDS)
        return "\n".join(f"complete --path {path} {option}" for path in paths)
    # zsh takes ./bin/index for the full path of what is there now, with the dot.
    folders = ("bin", str(SCRIPTS), f"{SCRIPTS.parent}/./bin" if shell == "zsh" else "./bin")
    return shlex.join(f"{folder}/{name}" for folder in folders for name in COMMANDS)


class _Completion(ShellComplete):
    """Completes ``bin/index`` as ``dedupindex index``, and arguments of no known kind as files."""

    def get_completion_args(self) -> tuple[list[str], str]:
        arguments, incomplete = super().get_completion_args()
        name = Path(split_arg_string(os.environ["COMP_WORDS"])[0]).name
        return [name, *arguments] if name in COMMANDS else arguments, incomplete

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        try:
            found = super().get_completions(args, incomplete)
        except (DedupError, click.ClickException):  # what was typed so far is wrong
            return []
        if found or not args or incomplete.startswith("-"):
            return found
        return [CompletionItem(incomplete, type="file")]

    def format_completion(self, item: CompletionItem) -> str:
        help = (item.help or "").partition("\n")[0].replace("\t", " ")
        return f"{item.type}\t{item.value}\t{help}"


class _Bash(_Completion, BashComplete):
    """Reads what bash says."""


class _Zsh(_Completion, ZshComplete):
    """Reads what zsh says."""


class _Fish(_Completion, FishComplete):
    """Reads what fish says."""


for shell_class in (_Bash, _Zsh, _Fish):
    add_completion_class(shell_class)
