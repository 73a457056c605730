"""The process behind the capture of output: passes on what a program prints, and writes it down.

It is a process of its own so that the last words of a killed program are not lost. Started by
`capture`, as `pump OUTPUT TOKEN_FD [READ_FD,CONSOLE_FD] ...`; it ends when nobody can write to it
any more.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import fcntl
import os
import select
import sys
import termios
from collections.abc import Iterable

from assay.core import signals
from assay.core.directory import open_directory
from assay.core.secrets.replacement import Secrets, from_line, to_line
from assay.record.printed_lines import PrintedLines

STDIN, STDOUT = 0, 1
CHUNK_BYTES = 1 << 16
TOKEN = b"t"
"""The byte that whoever reads the output has taken."""

RETRY_S = 1.0
_MOST_LEARNT = 60
_LONGEST = 500


class SharingStream:
    """Stream whose lines stand in one file with those of others."""

    cut_off = False  # another stream has begun a line while ours had no end


class CapturedStream(SharingStream):
    """Pipe from `source` to `console`, for as long as the console is read."""

    # No dataclass: their module takes as long to import as all the rest of this program.
    def __init__(self, source: int, console: int) -> None:
        self.source = source
        self.console = console
        self.is_open = True
        self.decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")

    def read(self) -> bytes:
        """The next bytes; none when all who could write are gone."""
        try:
            return os.read(self.source, CHUNK_BYTES)
        except OSError as error:
            if error.errno == errno.EIO:  # how a pseudo terminal says it
                return b""
            raise

    def show(self, data: bytes) -> None:
        while data and self.is_open:
            try:
                data = data[os.write(self.console, data) :]
            except BlockingIOError:
                select.select([], [self.console], [])
            except OSError:  # `| head` has seen enough, or the terminal was closed
                self.is_open = False

    def follow_size(self) -> None:
        """Let the program see the size of the terminal that it really writes to."""
        try:
            size = fcntl.ioctl(self.console, termios.TIOCGWINSZ, bytes(8))
            fcntl.ioctl(self.source, termios.TIOCSWINSZ, size)
        except OSError:
            return


class SecretsInput:
    """Secrets that the program tells on standard input: a line of words each time."""

    def __init__(self, secrets: Secrets) -> None:
        self.secrets = secrets
        self.is_open = True
        self.is_told = False
        self.told: set[str] = set()
        self._rest = b""

    def read(self) -> None:
        """Take in what is there; waits for the first byte."""
        try:
            data = os.read(STDIN, CHUNK_BYTES)
        except OSError:
            data = b""
        self.is_open = bool(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self.is_told = True
            words = from_line(line)
            self.secrets.add(words)
            self.told.update(words)


class OutputWriter:
    """Writer of what comes out of pipes: into a file, and on to the console of each."""

    def __init__(
        self, output: str | os.PathLike[str], pairs: Iterable[tuple[int, int]], secrets: Secrets
    ) -> None:
        self.streams = {source: CapturedStream(source, console) for source, console in pairs}
        self._descriptor = open_output(output)
        end_last_line(self._descriptor)
        self._printed = PrintedLines(self._descriptor, clean=secrets.clean)
        self._lines = SharedLines(self._printed)

    def pass_on(self, *others: int, wait_s: float = RETRY_S) -> list[int]:
        """Write and show what has come; return the pipes, and other descriptors, that had some."""
        ready, _, _ = select.select([*self.streams, *others], [], [], wait_s)
        for source in ready:
            if source in others:
                continue
            stream = self.streams[source]
            data = stream.read()
            if not data:
                del self.streams[source]
                continue
            self._lines.feed(stream, stream.decoder.decode(data))
            flush_lines(self._printed)  # first: what was seen is also written down
            stream.show(data)
        if not ready:
            for stream in self.streams.values():
                stream.follow_size()
        return ready

    def close(self) -> None:
        """Write the last line, or OSError; close the file and leave the pipes open."""
        try:
            self._printed.close()
        finally:
            os.close(self._descriptor)


def main(output: str, token: str, *pairs: str) -> None:
    """Capture output until nobody can print any more, unless the program does it itself."""
    signals.ignore()  # it ends with the program, not before
    secrets = Secrets.among(os.environ)
    known = SecretsInput(secrets)
    while known.is_open and not known.is_told:  # first: nothing is written down before
        known.read()
    while not take_token(int(token)):
        select.select([int(token)], [], [])
    writer = OutputWriter(output, [_two_numbers(pair) for pair in pairs], secrets)
    while writer.streams:
        if STDIN in writer.pass_on(*([STDIN] if known.is_open else [])):
            known.read()
    with contextlib.suppress(OSError):
        writer.close()
        # Few enough for the pipe, so that nobody has to read them.
        learnt = [it for it in secrets.values if it not in known.told and len(it) <= _LONGEST]
        os.write(STDOUT, to_line(learnt[:_MOST_LEARNT]))
    os._exit(0)  # the end of the run waits: nothing is left that Python would have to clear away


def take_token(descriptor: int) -> bool:
    """Take the byte that one of two may have; return False while the other one has it.

    Who is left alone has it: the other one was killed.
    """
    try:
        return os.read(descriptor, 1) in (TOKEN, b"")
    except BlockingIOError:
        return False


def _two_numbers(pair: str) -> tuple[int, int]:
    source, console = pair.split(",")
    return int(source), int(console)


def open_output(path: str | os.PathLike[str]) -> int:
    try:
        with open_directory(os.path.dirname(path)) as folder:
            return folder.open(os.path.basename(path), os.O_RDWR | os.O_CREAT)
    except OSError:  # the folder is gone already: what is printed is at least shown
        return os.open(os.devnull, os.O_RDWR)


class SharedLines:
    """Lines of several streams in one file: each line belongs to one of them, so it can be read."""

    def __init__(self, printed: PrintedLines) -> None:
        self.printed = printed
        self._last: SharingStream | None = None

    def feed(self, stream: SharingStream, text: str) -> None:
        """Write the text of a stream; begin a line if the last text was of another stream."""
        if stream is not self._last:
            if self._last is not None:
                self._last.cut_off = self.printed.begin_line()
            if stream.cut_off and text.startswith(("\n", "\r\n")):
                text = text.partition("\n")[2]
            stream.cut_off, self._last = False, stream
        self.printed.feed(text)


def end_last_line(descriptor: int) -> None:
    """End the line in which the output of the attempt before may have stopped."""
    size = os.fstat(descriptor).st_size
    if size and os.pread(descriptor, 1, size - 1) != b"\n":
        os.pwrite(descriptor, b"\n", size)


def flush_lines(printed: PrintedLines) -> None:
    """A full disk stops nothing: the next flush writes what this one could not."""
    try:
        printed.flush()
    except OSError:
        return


if __name__ == "__main__":
    main(*sys.argv[1:])
