"""Numbers as people read them."""


def human_bytes(n: float) -> str:
    """Bytes with a decimal unit: 1_500_000 -> '1.5 MB'."""
    number, unit = _scaled(n, ("B", "kB", "MB", "GB", "TB", "PB"))
    return f"{number} {unit}"


def human_count(n: float) -> str:
    """A count with a short suffix: 1_240_000 -> '1.24M'; beyond 1e18, for which there is none, by powers of ten."""
    if abs(n) >= 1e18:
        return _power(n)
    number, unit = _scaled(n, ("", "k", "M", "B", "T"))
    return f"{number}{unit}"


def human_flops(n: float) -> str:
    """FLOPs with a decimal unit: 481e9 -> '481 GFLOP'; beyond petaflops by powers of ten, as budgets are written."""
    if abs(n) >= 1e18:
        return f"{_power(n)} FLOP"
    number, unit = _scaled(n, ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"))
    return f"{number} {unit}"


def human_time(seconds: float) -> str:
    """Seconds as '42 s', '3 min 05 s' or '2 h 07 min'."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def counted(n: int, thing: str) -> str:
    """A number of things: '1 layer', '2 layers'."""
    return f"{n} {thing}{'s' * (n != 1)}"


def _power(n: float) -> str:
    """Three digits and a power of ten: '1.5e21'."""
    return f"{n:.3g}".replace("e+", "e")


def _scaled(n: float, units: tuple[str, ...]) -> tuple[str, str]:
    """`n` in the largest unit that leaves at least 1, to three digits, and that unit."""
    for unit in units[:-1]:
        if abs(n) < 999.5:  # what three digits would round up to 1000 belongs to the next unit
            return f"{n:.3g}", unit
        n /= 1000
    return (f"{n:.3g}" if abs(n) < 999.5 else f"{n:.0f}"), units[-1]
