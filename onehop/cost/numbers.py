"""How many bytes a number takes, by the name of its type."""

from onehop.base.errors import ConfigError, did_you_mean

# Whole numbers of bytes: types of PyTorch. Fractions: blocks of numbers that share scales, as GGUF files have them
# (ggml, docs/gguf.md and ggml-common.h): bytes of a block / numbers in it.
BYTES: dict[str, float] = {
    "float64": 8,
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8": 1,
    "q8_0": 34 / 32,
    "q6_k": 210 / 256,
    "q5_k": 176 / 256,
    "q4_k": 144 / 256,
    "q4_0": 18 / 32,
}
MOST = 2**53  # up to here a float tells whole numbers apart; no text, batch or model comes near
PLAIN = ("float64", "float32", "bfloat16", "float16", "float8")
INT8_SCALE = 4  # bytes: an int8 cache keeps one float32 scale beside each vector of a head

CACHE_TYPES = (*PLAIN, "int8")


def bytes_per_weight(dtype: str) -> float:
    """Bytes of one number of a weight matrix. Raises ConfigError with the nearest name."""
    if dtype not in BYTES:
        raise ConfigError(f"dtype {dtype!r} does not exist. {did_you_mean(dtype, BYTES)}")
    return BYTES[dtype]


def cache_bytes(dtype: str, width: int, vectors: int) -> int:
    """Bytes of `vectors` vectors of `width` numbers each in a cache of `dtype`."""
    if dtype == "int8":
        return vectors * (width + INT8_SCALE)
    if dtype not in PLAIN:
        raise ConfigError(f"a cache cannot hold {dtype!r}. {did_you_mean(dtype, CACHE_TYPES)}")
    return int(vectors * width * BYTES[dtype])
