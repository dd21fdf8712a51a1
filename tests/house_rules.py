"""The house rules as functions: each takes the parsed text of one file of onehop and yields its complaints."""

import ast
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import onehop
from onehop.floors import FLOORS, ROOT_FILES, TORCH_FREE

PACKAGE = Path(onehop.__file__).parent

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 40
MAX_POSITIONAL = 4  # three is the aim; the kernels of attention share (q, keys, rule, sight)

# Imported where used, because they are slow to load, optional, or only there for their effect on the terminal.
LAZY = {
    "gguf", "huggingface_hub", "jinja2", "llguidance", "lm_eval", "matplotlib", "pyarrow", "readline", "sentencepiece",
    "tensorboard", "tiktoken", "tokenizers", "transformers", "wandb", "zstandard",
}  # fmt: skip
BRINGS_TORCH = ("torch", "safetensors.torch", "transformers", "tensorboard", "lm_eval")
# Their commands import what they run when they run it, so that --help stays quick; `import onehop` likewise.
MAY_IMPORT_LATE = {"cli", "__init__", "__main__"}

READ_THE_ENVIRONMENT = {"cli", "parallel/launch.py"}
IMPORT_BY_NAME = {"__init__.py", "cli"}
RUNS_A_USERS_FILE = {"config/own.py"}  # the file of own parts that a user names

FAMILIES = {
    "cohere", "deepseek", "gemma", "glm", "gpt", "kimi", "llama", "mistral", "mixtral", "nemotron", "neox", "olmo",
    "phi3", "pythia", "qwen", "smollm", "stablelm", "starcoder",
}  # fmt: skip
# The public names of one way to stretch RoPE and of a kind of position; DESIGN calls them so.
NAMES_OF_METHODS = {"llama3", "t5"}
MAY_NAME_FAMILIES = {"formats", "config/presets.py", "config/presets"}
MAY_NAME_METHODS = {"config", "parts", "cost"}


@dataclass(frozen=True)
class Source:
    """One file: its path below the package and its text."""

    path: str  # parts/rope.py
    text: str

    @property
    def tree(self) -> ast.Module:
        return _parsed(self.text)

    @property
    def package(self) -> str:
        """The row of the floor table that it belongs to: `parts`, or `lm` for a file at the root."""
        return self.path.split("/")[0].removesuffix(".py")

    def is_in(self, places: set[str]) -> bool:
        return any(self.path == place or self.path.startswith(f"{place}/") for place in places)


@functools.cache
def _parsed(text: str) -> ast.Module:
    """Each file is parsed once for all rules, which only look."""
    return ast.parse(text)


def sources() -> list[Source]:
    """Every Python file of the package."""
    files = sorted(PACKAGE.rglob("*.py"))
    return [Source(file.relative_to(PACKAGE).as_posix(), file.read_text()) for file in files]


@dataclass(frozen=True)
class Import:
    """One imported module and where the statement stands."""

    module: str
    line: int
    late: bool  # inside a function
    for_types: bool  # under `if TYPE_CHECKING:`, so it never runs


@functools.cache
def imports(tree: ast.Module) -> tuple[Import, ...]:
    """Every import; `from onehop import x` counts as one of `onehop.x`."""
    return tuple(_imports(tree))


def _imports(tree: ast.Module) -> Iterator[Import]:
    late = {id(node) for function in _functions(tree) for node in ast.walk(function)}
    guards = [node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)]
    for_types = {id(node) for guard in guards for statement in guard.body for node in ast.walk(statement)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level:
            modules = ["." * node.level + (node.module or "")]
        elif isinstance(node, ast.ImportFrom) and node.module == "onehop":
            modules = [f"onehop.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [node.module or ""]
        else:
            continue
        for module in modules:
            yield Import(module, node.lineno, id(node) in late, id(node) in for_types)


def floors(source: Source) -> Iterator[str]:
    """Imports point to the own package or to strictly lower floors."""
    table = FLOORS | ROOT_FILES
    if source.package not in table:
        yield f"{source.path}: {source.package} has no row in the floor table"
        return
    for found in imports(source.tree):
        if found.module.startswith("."):
            yield f"{source.path}:{found.line} imports relatively"
        if found.module.split(".")[0] != "onehop" or (source.path == "__init__.py" and found.for_types):
            continue
        target = (found.module.split(".") + ["__init__"])[1]
        if found.module == "onehop.__version__":
            continue
        if target not in table:
            yield f"{source.path}:{found.line} imports the public name or unknown package {found.module}"
        elif target != source.package and table[target] >= table[source.package]:
            own = table[source.package]
            yield f"{source.path}:{found.line} (floor {own}) imports {found.module} (floor {table[target]})"


def imports_at_the_top(source: Source) -> Iterator[str]:
    """Imports stand at the top of the file; a short list of slow or optional packages may be imported where used."""
    for found in imports(source.tree):
        root = found.module.split(".")[0]
        if found.late and root not in LAZY and not (root in ("onehop", "torch") and source.package in MAY_IMPORT_LATE):
            yield f"{source.path}:{found.line} imports {found.module} inside a function"


def no_torch(source: Source) -> Iterator[str]:
    """The torch-free floors import nothing that brings torch, not even inside a function."""
    if source.package in TORCH_FREE or source.package == "floors":
        for found in imports(source.tree):
            brings = any(found.module == name or found.module.startswith(f"{name}.") for name in BRINGS_TORCH)
            if brings and not found.for_types:
                yield f"{source.path}:{found.line} imports {found.module} on a floor without torch"


def sizes(source: Source) -> Iterator[str]:
    """A file is read in one sitting, a function on one screen, and a call without counting arguments."""
    lines = source.text.count("\n")
    if lines > MAX_FILE_LINES:
        yield f"{source.path} has {lines} lines, more than {MAX_FILE_LINES}"
    tree = source.tree
    inner = {id(node) for function in _functions(tree) for node in ast.walk(function) if node is not function}
    for function in _functions(tree):
        length = (function.end_lineno or 0) - function.lineno + 1
        if length > MAX_FUNCTION_LINES:
            yield f"{source.path}:{function.lineno} {function.name} has {length} lines, more than {MAX_FUNCTION_LINES}"
        names = [argument.arg for argument in function.args.posonlyargs + function.args.args]
        names = [name for name in names if name not in ("self", "cls")]
        if len(names) > MAX_POSITIONAL and not _called_by_contract(function) and id(function) not in inner:
            yield f"{source.path}:{function.lineno} {function.name} takes {len(names)} arguments by position: {names}"


def _called_by_contract(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Private, or with the signature that its caller wants: autograd's begins with `ctx`, a command has options."""
    private = function.name.startswith("_") and not function.name.startswith("__")
    first = [argument.arg for argument in function.args.args[:1]]
    return private or first == ["ctx"] or any(".command(" in ast.unparse(mark) for mark in function.decorator_list)


def no_family_names(source: Source) -> Iterator[str]:
    """What code does never depends on whose model it is: no family in identifiers or strings (prose may cite one)."""
    if source.is_in(MAY_NAME_FAMILIES):
        return
    allowed = NAMES_OF_METHODS if source.is_in(MAY_NAME_METHODS) else set()
    for word, line in _words(source.tree):
        snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", word).lower()
        for token in re.findall(r"[a-z]+[0-9]*", snake):
            if token not in allowed and (token in FAMILIES or token.rstrip("0123456789") in FAMILIES):
                yield f"{source.path}:{line} names the family {token} in {word!r}"


def no_environment(source: Source) -> Iterator[str]:
    """Nothing is decided by environment variables, outside the command line and the launcher of ranks."""
    if source.is_in(READ_THE_ENVIRONMENT):
        return
    names = {"environ", "environb", "getenv", "putenv", "unsetenv", "expandvars"}
    for node in ast.walk(source.tree):
        used = {node.attr} if isinstance(node, ast.Attribute) and ast.unparse(node.value).startswith("os") else set()
        if isinstance(node, ast.ImportFrom) and node.module in ("os", "os.path"):
            used = {alias.name for alias in node.names}
        for name in used & names:
            yield f"{source.path}:{node.lineno} uses os.{name}"


def nothing_that_runs_data(source: Source) -> Iterator[str]:
    """A file that was read never becomes code: no pickle in any form, no eval; a user's own file goes by one door."""
    picklers = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
    for found in imports(source.tree):
        if found.module.split(".")[0] in picklers:
            yield f"{source.path}:{found.line} imports {found.module}"
        if found.module in ("importlib", "importlib.machinery", "runpy") and not source.is_in(
            IMPORT_BY_NAME | RUNS_A_USERS_FILE
        ):
            yield f"{source.path}:{found.line} imports {found.module}"
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call):
            yield from (f"{source.path}:{node.lineno} calls {what}" for what in _runs_data(node, source))


def _runs_data(call: ast.Call, source: Source) -> Iterator[str]:
    name = ast.unparse(call.func)
    doors = ("exec_module", "spec_from_file_location", "spec_from_loader", "run_path", "run_module")
    if (name in ("exec", "compile") or name.split(".")[-1] in doors) and not source.is_in(RUNS_A_USERS_FILE):
        yield f"{name}, which runs a file"
    given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    if name in ("eval", "__import__", "torch.save"):
        yield name
    if name == "torch.load" and given.get("weights_only") != "True":
        yield "torch.load without weights_only=True"
    if given.get("allow_pickle", "False") != "False" or given.get("trust_remote_code", "False") != "False":
        yield f"{name} with a door for foreign code"


def nothing_unfinished(source: Source) -> Iterator[str]:
    """No marks of work left for later."""
    for number, line in enumerate(source.text.splitlines(), 1):
        for mark in re.findall(r"\b(?:TODO|FIXME|XXX|HACK|NotImplementedError)\b", line):
            yield f"{source.path}:{number} says {mark}"


def _functions(tree: ast.AST) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def _words(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Every identifier and every string that is not prose (docstrings, descriptions, help texts), with its line."""
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg in ("description", "help"):
            prose |= {id(part) for part in ast.walk(node.value)}
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node.value, line
        for field in ("id", "attr", "name", "arg", "asname", "module"):
            word = getattr(node, field, None)
            if isinstance(word, str):
                yield word, line


RULES = (
    floors,
    imports_at_the_top,
    no_torch,
    sizes,
    no_family_names,
    no_environment,
    nothing_that_runs_data,
    nothing_unfinished,
)
