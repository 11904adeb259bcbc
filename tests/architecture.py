"""The architecture rules: functions from a parsed module to its violations.

`tests/test_architecture.py` runs them on the package and, to prove that each can fail, on planted violations.
Standard library only, so that they run wherever the source can be parsed.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

ROWS: tuple[tuple[str, ...], ...] = (
    ("cli",),
    ("api",),
    ("viewer",),
    ("reports",),
    ("exporters",),
    ("ingest", "clocks", "analysis"),
    ("model", "schedules", "record", "execution", "storage"),
    ("vocabulary",),
)
"""Top to bottom. A part imports from itself and from the rows below it, never sideways, never up."""

ISLANDS = ("demo",)
"""Parts that import nothing from stagescope: the demo's training script, like a user's, does not know about it.

Only the top row may import them.
"""

DOORS = ("__init__", "__main__")
"""The package's entry modules are above all rows; nothing inside the package imports them."""

LEVEL = {part: level for level, parts in enumerate(ROWS) for part in parts}
BELOW_ALL = len(ROWS)
FAMILIES = {
    "ingest": (
        "ascend",
        "chrome",
        "kineto",
        "nsight",
        "otlp",
        "paddle",
        "perfetto",
        "primus",
        "recording",
        "rocprof",
        "stored_run",
        "table",
        "xplane",
    ),
    "exporters": ("chrome", "originals", "other_tools", "perfetto", "pictures", "stored_run", "tables"),
}
"""Sources and export formats, by the folder they are in. None imports another: each can be deleted by itself."""

TABLES = frozenset({"numpy", "polars"})
FRAMEWORKS = frozenset({"deepspeed", "megatron", "paddle", "torch", "torch_npu"})
THIRD_PARTY: dict[str, frozenset[str]] = {
    "__init__": frozenset(),
    "__main__": frozenset(),
    "cli": frozenset({"click", "rich"}),
    "api": TABLES,
    "api/metrics_server": frozenset({"prometheus_client"}),
    "api/run_loggers": frozenset({"mlflow", "tensorboard", "wandb"}),
    "api/telemetry": TABLES | {"opentelemetry"},
    "viewer": TABLES | {"msgspec"},
    "viewer/notebook": frozenset({"anywidget", "traitlets"}),
    "viewer/server": TABLES | {"starlette", "uvicorn"},
    "reports": TABLES | {"rich"},
    "exporters": TABLES | {"msgspec"},
    "exporters/pictures/pdf": frozenset({"typst"}),
    "exporters/pictures/png": frozenset({"resvg_py"}),
    "exporters/stored_run": TABLES | {"filelock", "pyarrow"},
    "ingest": TABLES | {"msgspec", "tomli", "zstandard"},
    "clocks": TABLES | {"scipy", "threadpoolctl"},
    "analysis": TABLES | {"scipy"},
    "analysis/saved": TABLES | {"msgspec"},
    "model": TABLES,
    "schedules": frozenset(),
    "execution": frozenset(),
    "execution/dask_cluster": frozenset({"dask", "distributed"}),
    "execution/slurm_cluster": frozenset({"cryptography", "dask", "dask_jobqueue", "distributed"}),
    "execution/ray_cluster": frozenset({"ray"}),
    "record": frozenset(),
    "record/frameworks": FRAMEWORKS,
    "record/devices": FRAMEWORKS,
    "record/sampling/gpu": frozenset({"pynvml"}),
    "record/hook": frozenset(
        {"sitecustomize"}
    ),  # the user's own module, which the hook shadows and then runs
    "storage": frozenset({"filelock", "fsspec"}),
    "vocabulary": frozenset(),
    "demo": frozenset({"torch"}),
}
"""What each part may import besides the standard library; the longest matching path decides."""

STANDARD = frozenset({*sys.stdlib_module_names, "tomllib"})
"""The standard library, also that of later versions than the one that runs the tests."""

FORBIDDEN_WORDS = frozenset({"common", "helper", "helpers", "manager", "misc", "util", "utils"})
MAX_MODULE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_PARAMETERS = 5
MAX_NESTING = 3

RECORDING = ("record", "demo")
"""Parts that need Linux; people look at recordings of a cluster on laptops with other systems."""

POSIX_MODULES = frozenset(
    {"curses", "fcntl", "grp", "posix", "pwd", "readline", "resource", "syslog", "termios"}
)
POSIX_NAMES = {
    "os": "chown fchown fdatasync fork forkpty getegid geteuid getgid getpgid getuid kill killpg mkfifo nice "
    "posix_fadvise posix_fallocate pread preadv pwrite pwritev sched_getaffinity setsid statvfs sysconf uname wait "
    "waitpid O_CLOEXEC O_DIRECTORY O_NOFOLLOW O_NONBLOCK",
    "signal": "SIGALRM SIGCHLD SIGCONT SIGHUP SIGKILL SIGPIPE SIGQUIT SIGSTOP SIGTSTP SIGUSR1 SIGUSR2 SIGWINCH alarm "
    "pthread_kill pthread_sigmask setitimer sigpending sigtimedwait sigwait sigwaitinfo",
    "socket": "AF_UNIX SO_REUSEPORT",
    "time": "CLOCK_MONOTONIC CLOCK_MONOTONIC_RAW CLOCK_REALTIME clock_getres clock_gettime clock_gettime_ns tzset",
    "select": "epoll kqueue poll",
}
POSIX_USES = frozenset(f"{module}.{name}" for module, names in POSIX_NAMES.items() for name in names.split())

PRINTING_PARTS = ("cli", "demo")
CONSOLE = "cli/console.py"
"""The only module of the command line that prints: it replaces control characters."""

PRINTING_CALLS = re.compile(
    r"print|(click|rich)\.(echo|secho|print)|(sys\.)?std(out|err)\.write|(\w+\.)?Console|pprint"
)
BLOCKS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.Try, ast.With, ast.AsyncWith, ast.Match)
IMPORTING = ("import_module", "__import__")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Finding(NamedTuple):
    """One violation: the module, the object in it (a part, library or function), the line, a sentence."""

    path: str
    thing: str
    line: int
    sentence: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.sentence}"


@dataclass(frozen=True)
class Module:
    """A parsed source file of the package."""

    path: str  # relative to the package, with forward slashes
    text: str
    tree: ast.Module

    @property
    def part(self) -> str:
        """The top-level folder or module of the package that it belongs to."""
        return self.path.split("/")[0].removesuffix(".py")

    @property
    def folder(self) -> str:
        """Its folder; empty for modules directly in the package."""
        return self.path.rpartition("/")[0]

    @property
    def name(self) -> str:
        """Its name without folder and suffix."""
        return self.path.rpartition("/")[2].removesuffix(".py")

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """All nodes of its syntax tree: walking through it takes longer than most rules."""
        return tuple(ast.walk(self.tree))

    @cached_property
    def imports(self) -> tuple[Import, ...]:
        """Every import: relative, inside functions, and by literal name."""
        typing_lines = _typing_only_lines(self)
        return tuple(
            Import(node.lineno, target, node.lineno in typing_lines)
            for node in self.nodes
            for target in _targets(node, self)
        )


class Import(NamedTuple):
    """An imported name, absolute and dotted, and whether only the type checker sees it."""

    line: int
    target: str
    typing_only: bool


def modules(package: Path) -> list[Module]:
    """Return every module of a package, parsed, sorted by path."""
    found = []
    for path in sorted(package.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        found.append(Module(path.relative_to(package).as_posix(), text, ast.parse(text, str(path))))
    return found


def _targets(node: ast.AST, module: Module) -> Iterator[str]:
    """Yield the dotted names that one syntax node imports."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        package = ["stagescope", *filter(None, module.folder.split("/"))]
        base = package[: len(package) - node.level + 1] if node.level else []
        stem = [*base, *([node.module] if node.module else [])]
        yield from (".".join([*stem, alias.name]) for alias in node.names)
    elif isinstance(node, ast.Call) and _last_name(node.func) in IMPORTING:
        yield from (arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant))


def _last_name(node: ast.expr) -> str:
    """Return the name, or the last part of a dotted one. Much faster than ast.unparse."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _typing_only_lines(module: Module) -> set[int]:
    """Return the line numbers below ``if TYPE_CHECKING:``, which never run."""
    return {
        line
        for node in module.nodes
        if isinstance(node, ast.If) and _last_name(node.test) == "TYPE_CHECKING"
        for statement in node.body
        for line in range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
    }


def imports_point_downwards(module: Module) -> Iterator[Finding]:
    """Yield imports within stagescope that point up, sideways, to an island or to an entry module."""
    for line, target, _ in module.imports:
        root, _, rest = target.partition(".")
        if root != "stagescope" or target == "stagescope.__version__" or module.path in _door_files():
            continue
        other = rest.split(".")[0]
        if other not in LEVEL and other not in ISLANDS:
            yield Finding(module.path, other, line, f"imports {target}, which is in no row")
        elif not _may_import(module.part, other):
            yield Finding(module.path, other, line, f"{module.part} must not import {other} ({target})")


def _may_import(part: str, other: str) -> bool:
    """Return whether a part may import another: itself, a lower row, or (from the top row) an island."""
    if other in ISLANDS:
        return part == other or part in ROWS[0]
    return part == other or LEVEL.get(part, BELOW_ALL) < LEVEL[other]


def _door_files() -> set[str]:
    return {f"{door}.py" for door in DOORS}


def siblings_stay_apart(module: Module) -> Iterator[Finding]:
    """Yield imports between two members of one family."""
    own = _member(f"stagescope.{module.path.removesuffix('.py').replace('/', '.')}")
    for line, target, _ in module.imports:
        other = _member(target)
        if own is not None and other is not None and own[0] == other[0] and own[1] != other[1]:
            yield Finding(module.path, other[1], line, f"{own[1]} must not import its sibling {other[1]}")


def _member(target: str) -> tuple[str, str] | None:
    """Return the family and the member that a dotted name belongs to, None for any other name."""
    _, part, member, *_ = [*target.split("."), "", ""]
    return (part, member) if member in FAMILIES.get(part, ()) else None


def third_parties_keep_to_their_row(module: Module) -> Iterator[Finding]:
    """Yield imports of libraries that a part may not use, except imports for the type checker."""
    allowed = THIRD_PARTY[_longest_folder(module)]
    for line, target, typing_only in module.imports:
        root = target.split(".")[0]
        if typing_only or root == "stagescope" or root in STANDARD or root in allowed:
            continue
        yield Finding(module.path, root, line, f"{module.folder or module.name} must not import {root}")


def _longest_folder(module: Module) -> str:
    """Return the longest key of THIRD_PARTY that contains a module."""
    own = module.path.removesuffix(".py")
    fitting = [folder for folder in THIRD_PARTY if own == folder or own.startswith(f"{folder}/")]
    return max(fitting, key=len, default="vocabulary")


def every_folder_has_a_row(module: Module) -> Iterator[Finding]:
    """Yield modules whose folder is in no row."""
    if module.part not in LEVEL and module.part not in ISLANDS and module.part not in DOORS:
        yield Finding(module.path, module.part, 1, f"{module.part} is in no row of the architecture")


def names_describe_their_content(module: Module) -> Iterator[Finding]:
    """Yield modules and folders whose name could describe any content."""
    for word in re.split(r"[/_.]", module.path):
        if word in FORBIDDEN_WORDS:
            yield Finding(module.path, word, 1, f"{word!r} does not describe the content")


def modules_stay_short(module: Module) -> Iterator[Finding]:
    """Yield modules over the limit."""
    lines = module.text.count("\n")
    if lines > MAX_MODULE_LINES:
        yield Finding(module.path, module.name, lines, f"{lines} lines, at most {MAX_MODULE_LINES}")


def functions(module: Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield every function and method of a module, nested ones too."""
    yield from (node for node in module.nodes if isinstance(node, FUNCTIONS))


def functions_stay_short(module: Module) -> Iterator[Finding]:
    """Yield functions over the limit, their docstring not counted."""
    for function in functions(module):
        body = function.body[1:] if ast.get_docstring(function) else function.body
        lines = (function.end_lineno or 0) - body[0].lineno + 1 if body else 0
        if lines > MAX_FUNCTION_LINES:
            sentence = f"{function.name} has {lines} lines, at most {MAX_FUNCTION_LINES}"
            yield Finding(module.path, function.name, function.lineno, sentence)


def parameters_stay_few(module: Module) -> Iterator[Finding]:
    """Yield functions with too many parameters; click passes the options of a command by name."""
    for function in functions(module):
        given = function.args
        names = [argument.arg for argument in (*given.posonlyargs, *given.args)]
        count = len(names[1:] if names[:1] in (["self"], ["cls"]) else names) + len(given.kwonlyargs)
        if count > MAX_PARAMETERS and not (module.part == "cli" and _is_command(function)):
            sentence = f"{function.name} has {count} parameters, at most {MAX_PARAMETERS}"
            yield Finding(module.path, function.name, function.lineno, sentence)


def _is_command(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    decorators = [ast.unparse(decorator) for decorator in function.decorator_list]
    return any(re.match(r"(click|\w+)\.(command|option|argument)\b", text) for text in decorators)


def nesting_stays_shallow(module: Module) -> Iterator[Finding]:
    """Yield functions nested too deeply; `elif` counts as the same level as its `if`."""
    for function in functions(module):
        depth = max((_depth(statement) for statement in function.body), default=0)
        if depth > MAX_NESTING:
            sentence = f"{function.name} nests {depth} deep, at most {MAX_NESTING}"
            yield Finding(module.path, function.name, function.lineno, sentence)


def _depth(node: ast.AST) -> int:
    """Return the nesting depth below a node, not counting nested functions."""
    if isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.Lambda)):
        return 0
    inside = [_depth(child) for child in ast.iter_child_nodes(node)]
    if isinstance(node, ast.If) and len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If):
        others = [_depth(child) for child in (*node.body, node.test)]
        return max(1 + max(others), _depth(node.orelse[0]))
    return isinstance(node, BLOCKS) + max(inside, default=0)


def only_the_front_end_prints(module: Module) -> Iterator[Finding]:
    """Yield calls of print outside the command line."""
    if module.part in PRINTING_PARTS:
        return
    for node in module.nodes:
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "print":
            yield Finding(module.path, "print", node.lineno, f"{module.part} must not print")


def the_command_line_prints_in_one_place(module: Module) -> Iterator[Finding]:
    """Yield calls that print from the command line past its console."""
    if module.part != "cli" or module.path == CONSOLE:
        return
    for node in module.nodes:
        if isinstance(node, ast.Call) and PRINTING_CALLS.fullmatch(ast.unparse(node.func)):
            called = ast.unparse(node.func)
            yield Finding(module.path, called, node.lineno, f"{called} prints past cli/console.py")


def broad_handlers_give_a_reason(module: Module) -> Iterator[Finding]:
    """Yield handlers of all exceptions that have no comment with the reason on their line or the next."""
    lines = module.text.splitlines()
    for node in module.nodes:
        if not isinstance(node, ast.ExceptHandler):
            continue
        caught = {"BaseException"} if node.type is None else {ast.unparse(each) for each in _each(node.type)}
        comments = [_comment(line) for line in lines[node.lineno - 1 : node.lineno + 1]]
        if caught & {"BaseException", "Exception"} and not any(comments):
            yield Finding(module.path, "except", node.lineno, "catches everything without giving a reason")


def _each(caught: ast.expr) -> list[ast.expr]:
    return caught.elts if isinstance(caught, ast.Tuple) else [caught]


def _comment(line: str) -> bool:
    """Return whether a line has a comment of at least two words, not counting noqa codes."""
    comment = line.partition("#")[2]
    words = re.sub(r"noqa:\s*[A-Z]+\d+(,\s*[A-Z]+\d+)*", "", comment)
    return len(re.findall(r"[^\W\d_]{2,}", words)) > 1


def only_the_recorder_needs_linux(module: Module) -> Iterator[Finding]:
    """Yield imports and uses of what macOS or Windows do not have, except in recording."""
    if module.part in RECORDING:
        return
    for line, target, typing_only in module.imports:
        if target.split(".")[0] in POSIX_MODULES and not typing_only:
            yield Finding(module.path, target, line, f"{target} is not available on every system")
    for node in module.nodes:
        if not (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)):
            continue
        name = f"{node.value.id}.{node.attr}"
        if name in POSIX_USES:
            yield Finding(module.path, name, node.lineno, f"{name} is not available on every system")


Rule = Callable[[Module], Iterator[Finding]]
RULES: tuple[Rule, ...] = (
    imports_point_downwards,
    siblings_stay_apart,
    third_parties_keep_to_their_row,
    every_folder_has_a_row,
    names_describe_their_content,
    modules_stay_short,
    functions_stay_short,
    parameters_stay_few,
    nesting_stays_shallow,
    only_the_front_end_prints,
    the_command_line_prints_in_one_place,
    broad_handlers_give_a_reason,
    only_the_recorder_needs_linux,
)
