"""A finished set of files takes its place in a folder: the folder has the old set or the new one."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from onehop.base.files import atomic_folder
from onehop.text.sources import tokenizer_file
from onehop.text.tokenizer import Tokenizer

# What describes one model and would be wrong beside another: removed when a save does not replace it.
STALE = (
    "model.safetensors",
    "model-*-of-*.safetensors",
    "model.safetensors.index.json",
    "generation_config.json",
    "provenance.json",
)
TOKENIZER = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "tokenizer.model",
    "spiece.model",
    "*.tiktoken",
    "vocab.json",
    "merges.txt",
)


@contextmanager
def new_files(folder: Path) -> Iterator[Path]:
    """A temporary folder whose files are moved into `folder` when the block ends well.

    A new folder appears as a whole. In one that is there, other files stay (a run's log, a user's notes), files of the
    same names are replaced, and what an earlier save says about its model is removed; an earlier tokenizer only where
    there is a new one.
    """
    if not folder.exists():
        with atomic_folder(folder) as temporary:
            yield temporary
        return
    finished = folder / ".saving"
    with atomic_folder(finished) as temporary:
        yield temporary
    names = {file.relative_to(finished).as_posix() for file in finished.rglob("*") if file.is_file()}
    new_tokenizer = tokenizer_file(finished) is not None
    for name in sorted(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        os.replace(finished / name, folder / name)
        (finished / name).unlink(missing_ok=True)  # left there where both names are links to one file
    for pattern in (*STALE, *(TOKENIZER if new_tokenizer else ())):
        for file in folder.glob(pattern):
            if file.name not in names:
                file.unlink()
    shutil.rmtree(finished)  # folders that are empty now


def put_tokenizer(folder: Path, tokenizer: Tokenizer | Path | None) -> None:
    """Save a tokenizer into a folder or, where it is a folder itself, copy its files as they are."""
    if isinstance(tokenizer, Tokenizer):
        tokenizer.save(folder)
    elif tokenizer is not None:
        for file in (file for pattern in TOKENIZER for file in tokenizer.glob(pattern)):
            shutil.copyfile(file, folder / file.name)
