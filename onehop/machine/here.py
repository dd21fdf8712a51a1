"""What this machine is, as its system says: processor, cores, memory, graphics cards. Loads no torch."""

import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

if sys.platform != "win32":
    import resource

LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


@dataclass(frozen=True)
class Machine:
    """Processor, cores that this process may use, bytes of memory (within a container's limit), and cards."""

    processor: str
    cores: int
    memory: int
    cards: tuple[tuple[str, float], ...]  # name, bytes


def here(*, cards: bool = True) -> Machine:
    """This machine. `cards`: ask for graphics cards too, which may take a second."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Machine(processor(), cores, _memory(), _cards() if cards else ())


def peak_resident() -> int | None:
    """The most bytes of memory that this process ever held; None where the system does not tell.

    Linux's VmHWM where it is: `getrusage` there counts what the program that began this one held.
    """
    about = Path("/proc/self/status")
    lines = about.read_text().splitlines() if about.is_file() else []
    told = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)
    if told is not None or sys.platform == "win32":
        return told
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def processor() -> str:
    """The processor's name."""
    about = Path("/proc/cpuinfo")
    if about.is_file():
        for line in about.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def has_native_bf16() -> bool:
    """Whether training takes bfloat16 on this processor by itself, as `training/setup.py` asks torch for it."""
    about = Path("/proc/cpuinfo")
    return about.is_file() and multiplies_bf16(about.read_text(errors="replace"))


def multiplies_bf16(about: str) -> bool:
    """The same of a processor that /proc/cpuinfo describes: by AMX's tiles, or AVX-512's instructions on AMD."""
    rows = (line.partition(":") for line in about.splitlines())
    flags = next((text.split() for name, _, text in rows if name.strip() == "flags"), [])
    return "amx_tile" in flags or ("avx512_bf16" in flags and "AuthenticAMD" in about)


def _memory() -> int:
    """Bytes of memory: the system's, or less where a container says so."""
    known = hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if known else 0
    for file in map(Path, LIMITS):
        try:
            limit = int(file.read_text())
        except (OSError, ValueError):
            continue
        total = min(total, limit) if total else limit
    return total


def _cards() -> tuple[tuple[str, float], ...]:
    """NVIDIA's cards, by the driver's own tool."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ()
    words = [tool, "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(words, capture_output=True, text=True, timeout=5, check=True).stdout
        rows = [line.rsplit(",", 1) for line in said.strip().splitlines()]
        return tuple((name.strip(), float(mib) * 2**20) for name, mib in rows)
    except (OSError, ValueError, subprocess.SubprocessError):
        return ()
