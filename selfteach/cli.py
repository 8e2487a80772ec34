"""The command line: `selfteach COMMAND ...`. Each command is a module of `commands`, imported only when it is asked for.

The parser is argparse and not tyro: the options of `train` depend on the method named beside them, a person's mistake must be answered with one
line that has the nearest right names (tyro prints a box), and one reader of typed values serves --option VALUE and --set KEY=VALUE alike.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module

from .core.errors import SelfteachError, nearest

# command -> (module of commands, what it does)
COMMANDS = {
    "train": ("train", "teach a model with a method, and measure it before and after"),
    "eval": ("measure", "measure the newest checkpoint of a run: pass@k, majority vote, length, calls; with a tool plugged in"),
    "compare": ("comparing", "several methods on one task over seeds: one table and one chart, with intervals"),
    "reproduce": ("reproducing", "run a paper's claim as an experiment and say whether it holds here"),
    "ledger": ("reproducing", "write the page of all verdicts from results/*.json"),
    "bench": ("bench", "speed here, beside peers and beside the machine's own limit: rollouts, learning, a whole step"),
    "methods": ("listing", "the methods there are, each with its paper, family, claim and verdict; one method as a table"),
    "tasks": ("listing", "the tasks there are, with their options and an example"),
    "models": ("listing", "the models that a run can start from"),
}

HELP = """usage: selfteach COMMAND ...

Language models that teach themselves. One loop runs every published method; each command explains itself with --help.

{commands}

examples:
  selfteach train ssrl                     learn with the flagship method, in minutes on two CPU cores
  selfteach eval runs/ssrl-1 --tool search plug a real search engine into what was trained
  selfteach compare grpo rloo --task chain_sum --seeds 5

  --json (all commands) leaves only JSON on stdout;  --version
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code: 0, 2 for a mistake (one line on stderr), 130 after Ctrl-C."""
    words = list(sys.argv[1:] if argv is None else argv)
    # A thread that waits by spinning for long takes the core from the one it waits for as soon as another process runs (20 times slower and
    # more); one that sleeps at once wakes too late for small products (twice as slow). This many turns are some 50 microseconds.
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")
    try:
        return _run(words)
    except SelfteachError as error:
        text = str(error)
        print(text if text.startswith("selfteach ") else f"selfteach: {text}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("selfteach: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # whoever read our output (head, less) has left; keep the interpreter from complaining when it flushes
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _run(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(HELP.format(commands="\n".join(f"  {name:<11}{what}" for name, (_, what) in COMMANDS.items())), end="")
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
