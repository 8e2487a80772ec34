"""The command line: `selfteach COMMAND ...`.

Each command is a module of `commands`, imported only when it is asked for.

The parser is argparse and not tyro: the options of `train` depend on the method named beside them, a person's mistake
must be answered with one line that has the nearest right names (tyro prints a box), and one reader of typed values
serves --option VALUE and --set KEY=VALUE alike.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from .commands.streams import command_streams
from .core.disk import CAUSED, disk_error
from .core.errors import ScoringFailed, SelfteachError, Terminated, nearest
from .core.terminal_text import escaped

# command -> (module of commands, what it does)
COMMANDS = {
    "train": ("train", "train a model with a method, and measure it before and after"),
    "eval": (
        "evaluate",
        "measure the newest checkpoint of a run, or a model before training: accuracy, pass@k, majority vote, length",
    ),
    "show": ("rollouts", "show rollouts of a run's step: prompt, turns, reward with its parts and reasons"),
    "view": ("view", "read curves and rollouts of runs in the browser, live ones too; or export them as one file"),
    "generate": ("generate", "let a run's newest checkpoint, or any model, answer a prompt"),
    "chat": ("chat", "talk to it in the terminal"),
    "serve": ("serve", "serve it by OpenAI's HTTP interface"),
    "serve-search": ("serve_search", "serve a search engine over a corpus to runs, by Search-R1's HTTP request"),
    "export": ("export", "write it as a GGUF file, or a folder in the Hub's layout"),
    "compare": ("compare", "run several methods on one task over seeds: one table and one chart, with intervals"),
    "side-by-side": ("side_by_side", "train the methods of a family on as many tokens each, and measure all alike"),
    "sweep": ("sweep", "run a method with every combination of some values: a table, best first, and a chart"),
    "reproduce": ("reproduce", "run a paper's claim as an experiment and say whether it holds here"),
    "ledger": ("reproduce", "write the page of all verdicts from the results of reproduce"),
    "bench": (
        "bench",
        "measure speed beside other libraries and the machine's limit: rollouts, learning, whole steps",
    ),
    "plan": ("plan", "say on paper what a run on many GPUs would take, and how to split them"),
    "methods": (
        "listing",
        "list the methods with paper, family and verdict; show one with its hyper-parameters and claim",
    ),
    "tasks": ("listing", "list the tasks; show one with its options and an example"),
    "models": ("listing", "list the models that a run can start from"),
    "regimes": ("regimes", "list the regimes, where claims are measured; show one; measure one on tuning seeds"),
}

HELP = """usage: selfteach COMMAND ...

Language models that teach themselves: reinforcement-learning post-training, every published method in one loop.

{commands}

examples:
  selfteach train ssrl                          train with the flagship method, in minutes on two CPU cores
  selfteach eval runs/ssrl-1 --decoder search   measure what was trained, with a real search engine
  selfteach generate runs/ssrl-1 "question: In which country is Lyon?"
  selfteach compare grpo rloo --task chain_sum --seeds 5

selfteach COMMAND --help shows the options of a command; --json (all commands) leaves only JSON on stdout; --version.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code: 0, 2 for a mistake (one line on stderr), 130 after Ctrl-C, 143 after
    SIGTERM.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    # A thread that spins for long while it waits takes the core from the thread it waits for as soon as another process
    # runs (20 times slower and more); one that sleeps at once wakes too late for small matmuls (twice as slow). This
    # many spins are about 50 microseconds.
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")
    try:
        with command_streams("--json" in words), terminated_by_sigterm():
            return _run(words)
    except SelfteachError as error:
        text = _one_line(error)
        print(text if text.startswith("selfteach ") else f"selfteach: {text}", file=sys.stderr)
        return 2
    except OSError as error:
        if error.errno not in CAUSED:
            raise
        print(f"selfteach: {_one_line(disk_error(error, error.filename or 'selfteach'))}", file=sys.stderr)
        return 2
    except SystemExit as exit:  # argparse has printed the help
        return int(exit.code or 0)
    except KeyboardInterrupt as stop:
        print("selfteach: stopped", file=sys.stderr)
        return 143 if isinstance(stop, Terminated) else 130


def _one_line(error: object) -> str:
    """What an error says, whatever a person's words or a file's name hold that it repeats; failures are listed."""
    text = escaped(str(error))
    return text if isinstance(error, ScoringFailed) else text.replace("\n", "\\n")


@contextmanager
def terminated_by_sigterm() -> Generator[None]:
    """Let SIGTERM raise Terminated, so that what is under way is put in order as after Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def terminate(*_: Any) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _run(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(HELP.format(commands="\n".join(f"  {name:<13}{what}" for name, (_, what) in COMMANDS.items())), end="")
        return 0
    if words[0] == "--version":
        import selfteach

        print(f"selfteach {selfteach.__version__}")
        return 0
    if words[0] not in COMMANDS:
        print(f"selfteach: no command is called {words[0]!r}; {nearest(words[0], COMMANDS)}", file=sys.stderr)
        return 2
    module = import_module(f".commands.{COMMANDS[words[0]][0]}", __package__)
    return module.run(words[0], words[1:])


if __name__ == "__main__":
    sys.exit(main())
