"""A decoded stream of records, held as little as its records allow."""

from __future__ import annotations

from collections.abc import Callable


class Cursor:
    """Bytes that come in pieces, read forward. `at` is where in `buffer` reading stands."""

    def __init__(
        self,
        piece: Callable[[], bytes],
        buffer: bytes = b"",
        *,
        position: int = 0,
        sound: Callable[[], bool] = lambda: True,
    ) -> None:
        self.sound = sound  # whether a stream that has ended was meant to end there
        self.buffer = buffer
        self.at = 0
        self._piece = piece
        self._base = position  # of the buffer's first byte in the stream

    @property
    def position(self) -> int:
        """Bytes from the beginning of the stream."""
        return self._base + self.at

    @property
    def held(self) -> int:
        """Bytes in the buffer not yet read."""
        return len(self.buffer) - self.at

    def hold(self, count: int) -> bool:
        """Have the next `count` bytes in the buffer; False if the stream ends before."""
        if len(self.buffer) - self.at >= count:
            return True
        pieces = [self.buffer[self.at :]]
        held = len(pieces[0])
        while held < count and (piece := self._piece()):
            pieces.append(piece)
            held += len(piece)
        self._base += self.at
        self.at = 0
        self.buffer = b"".join(pieces)
        return held >= count

    def take(self, most: int) -> bytes:
        """Between 1 and `most` bytes; none at the end of the stream."""
        if not self.hold(1):
            return b""
        data = self.buffer[self.at : self.at + most]
        self.at += len(data)
        return data

    def skip_line_ends(self) -> int:
        """Pass over CR and LF; returns how many."""
        skipped = 0
        while self.hold(1):
            if self.buffer[self.at] not in b"\r\n":
                break
            rest = self.buffer[self.at :].lstrip(b"\r\n")
            count = self.held - len(rest)
            self.at += count
            skipped += count
        return skipped
