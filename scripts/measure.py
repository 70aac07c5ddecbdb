"""Shared by the two benchmark scripts: run a process and say what it took; the page cache; small helpers.

Only the standard library: the measuring process has to stay small, because Linux says of a child that its peak memory was at least
what its parent had used before it was started. `megabytes` says "below" where that hides the child's own peak.
"""

from __future__ import annotations

import dataclasses
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ORACLE = ROOT / "target" / "release" / ("oracle.exe" if os.name == "nt" else "oracle")
MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024
DROP_CACHES = Path("/proc/sys/vm/drop_caches")


@dataclasses.dataclass(frozen=True)
class Usage:
    """What one process took, from its start to its end."""

    seconds: float
    peak_bytes: int
    """Peak resident memory; not less than `floor_bytes`."""
    disk_bytes: int
    """Read from the disk, not from the page cache (Linux)."""
    stdout: str


def say(message: str) -> None:
    """A message for the person, on standard error."""
    print(message, file=sys.stderr, flush=True)


def run(command: Sequence[str | Path], environment: dict[str, str] | None = None) -> Usage:
    """Run a command to its end; anything but exit code 0 ends the script."""
    words = [str(word) for word in command]
    with tempfile.TemporaryFile() as stdout:
        started = time.perf_counter()
        try:
            process = subprocess.Popen(words, stdout=stdout, env={**os.environ, **(environment or {})})
        except OSError as problem:
            raise SystemExit(f"{words[0]}: {problem.strerror}") from None
        try:
            _, status, used = os.wait4(process.pid, 0)
        except BaseException:
            process.kill()
            process.wait()
            raise
        seconds = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            raise SystemExit(f"exit code {process.returncode}: {' '.join(words)}")
        stdout.seek(0)
        text = stdout.read().decode()
    return Usage(seconds, used.ru_maxrss * MAXRSS_UNIT, used.ru_inblock * 512, text)


def floor_bytes() -> int:
    """The peak memory of this process so far: a child's peak can't be seen below that."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * MAXRSS_UNIT


def megabytes(peak: int) -> str:
    """A child's peak memory."""
    floor = floor_bytes()
    return f"{peak / 1e6:.0f}" if peak > floor else f"below {floor / 1e6:.0f}"


def drop_page_cache(files: Iterable[Path], method: str) -> str:
    """Forget cached file contents: of the whole system, or of these files alone. Returns the method ("system" or "files")."""
    os.sync()
    if method in ("auto", "system"):
        try:
            DROP_CACHES.write_text("3\n")
            return "system"
        except OSError as problem:
            if method == "system":
                raise SystemExit(f"{DROP_CACHES}: {problem.strerror}; try --drop files") from None
    for path in files:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return "files"


def spread(values: Sequence[float]) -> str:
    """Median, and in brackets the smallest and the largest."""
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows])


def machine() -> str:
    """The machine in words: processor, how many of them, memory, system."""
    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), name)
    except OSError:
        pass
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{name}, {os.cpu_count()} processors, {memory:.0f} GiB, {platform.system()} {platform.release().split('-')[0]}"


def warn_if_busy() -> None:
    """Say so when something else has been running: figures of a busy machine are no figures."""
    load = os.getloadavg()[0]
    if load > 0.5:
        say(f"warning: the load average is {load:.2f}; measure on an idle machine")


def tokens(count: int, vocab: int) -> list[int]:
    """The token ids of every measurement: (7919 i + 1009) mod vocab, all different up to the vocabulary's size."""
    return [(7919 * i + 1009) % vocab for i in range(count)]


def numbers(text: str) -> list[int]:
    """A comma-separated list of positive integers, for argparse."""
    values = [int(part) for part in text.split(",")]
    if min(values) < 1:
        raise ValueError(text)
    return values
