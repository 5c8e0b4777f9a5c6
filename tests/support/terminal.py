"""Programs on a pseudoterminal, and what is then on its screen."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

_ON_TERMINAL = 'exec "$@" <>"$0" >&0 2>&1'  # which becomes that of the session
_PATIENCE = 60.0  # seconds in which something is written


class Terminal:
    """A program on a terminal, to which one types; a context manager. TERM is not inherited."""

    def __init__(
        self,
        command: Sequence[str],
        columns: int = 80,
        environment: Mapping[str, str] | None = None,
        directory: Path | None = None,
    ) -> None:
        given = {name: value for name, value in os.environ.items() if name != "TERM"}
        self._fd, its = pty.openpty()
        fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self._process = subprocess.Popen(
            ["sh", "-c", _ON_TERMINAL, os.ttyname(its), *command],
            stdin=its, cwd=directory, start_new_session=True,
            env={**given, **(environment or {})},
        )  # fmt: skip
        os.close(its)
        self.written, self._read = "", 0

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._process.kill()
        self._process.wait()
        os.close(self._fd)

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def until(self, text: str | None = None) -> str:
        """Return what is written until there is `text` in it, or until the program ends."""
        start = self._read
        with suppress(OSError):  # when the program has ended
            while text is None or text not in self.written[start:]:
                if not select.select([self._fd], [], [], _PATIENCE)[0]:
                    break
                self.written += os.read(self._fd, 65536).decode(errors="replace")
        assert text is None or text in self.written[start:], self.written
        self._read = len(self.written)
        if text is not None:
            self._read = self.written.index(text, start) + len(text)
        return self.written[start : self._read]


def on_terminal(
    command: Sequence[str], columns: int = 80, environment: Mapping[str, str] | None = None
) -> str:
    """Run a command on a terminal of so many columns; return all it wrote, with escapes."""
    with Terminal(command, columns, environment) as terminal:
        return terminal.until()


def screen(written: str) -> list[str]:
    """Return the lines that remain of what was written with CR, LF and "erase to the end"."""
    lines = []
    for piece in written.replace("\r\n", "\n").split("\n"):
        line = ""
        for part in piece.split("\r"):
            erased, text = part.startswith("\x1b[K"), part.removeprefix("\x1b[K")
            line = text if erased else text + line[len(text) :]
        lines.append(line)
    return lines
