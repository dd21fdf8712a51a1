"""Floor 2: checkpoint layouts as two-way tables, one file per family. No torch."""

from onehop.formats.family import FAMILIES, family_for, family_of, read_config, write_config
from onehop.formats.layout import Family

__all__ = ["FAMILIES", "Family", "family_for", "family_of", "read_config", "write_config"]
