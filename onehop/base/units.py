"""Numbers as people read them."""


def human_bytes(n: float) -> str:
    """Bytes with a decimal unit: 1_500_000 -> '1.5 MB'."""
    return _scaled(n, ("B", "kB", "MB", "GB", "TB", "PB"))


def human_count(n: float) -> str:
    """A count with a short suffix: 1_240_000 -> '1.24M'."""
    for size, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(n) >= size:
            return f"{n / size:.3g}{suffix}"
    return f"{n:.3g}"


def human_time(seconds: float) -> str:
    """Seconds as '42 s', '3 min 05 s' or '2 h 07 min'."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _scaled(n: float, units: tuple[str, ...]) -> str:
    for unit in units:
        if abs(n) < 1000 or unit == units[-1]:
            return f"{n:.0f} {unit}" if unit == units[0] else f"{n:.3g} {unit}"
        n /= 1000
    raise AssertionError("unreachable")
