# SPDX-License-Identifier: Apache-2.0
"""The command ``lightning-sagemaker``: a table of commands, each in a module of its own.

A command's module has ``HELP``, ``add_arguments(parser)`` and ``main(arguments) -> exit code`` and imports neither
torch nor Lightning at module level, so that help is instant. What ``main`` raises for a user's mistake is shown here, with
exit code 2, and so is a file or folder that cannot be read or written; a recipe decides itself how it shows its errors.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from importlib import import_module

import lightning_sagemaker
from lightning_sagemaker.commands import run
from lightning_sagemaker.errors import CommandError, about_system
from lightning_sagemaker.job.types import SageMakerJobError
from lightning_sagemaker.pipes import drop_output, quiet_pipe

COMMANDS = {
    "run": "lightning_sagemaker.commands.run",
    "ls": "lightning_sagemaker.commands.ls",
    "cp": "lightning_sagemaker.commands.cp",
    "prepare": "lightning_sagemaker.commands.prepare",
    "local": "lightning_sagemaker.commands.local",
    "supervise": "lightning_sagemaker.commands.supervise",
    "launch": "lightning_sagemaker.commands.launch",
    "jobs": "lightning_sagemaker.commands.jobs",
    "logs": "lightning_sagemaker.commands.logs",
    "stop": "lightning_sagemaker.commands.stop",
    "download": "lightning_sagemaker.commands.download",
    "register": "lightning_sagemaker.commands.register",
    "metrics": "lightning_sagemaker.commands.metrics",
    "convert": "lightning_sagemaker.commands.convert",
    "bench": "lightning_sagemaker.commands.bench",
    "plan": "lightning_sagemaker.commands.plan",
    "template": "lightning_sagemaker.commands.template",
    "image": "lightning_sagemaker.commands.image",
    "demo": "lightning_sagemaker.commands.demo",
    "doctor": "lightning_sagemaker.commands.doctor",
}


def build_parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = argparse.ArgumentParser(prog="lightning-sagemaker", description=lightning_sagemaker.__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--version", action="version", version=lightning_sagemaker.__version__)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, module_name in COMMANDS.items():
        module = import_module(module_name)
        command = commands.add_parser(name, help=module.HELP, description=module.__doc__)
        command.formatter_class = argparse.RawDescriptionHelpFormatter
        module.add_arguments(command)
        command.set_defaults(run_command=module.main, parser_of_command=command)  # names that no option has
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the return value is the exit code."""
    with quiet_pipe():
        return _main(arguments)


def _main(arguments: Sequence[str] | None) -> int:
    parser = build_parser()
    parsed, rest = parser.parse_known_args(arguments)
    if rest and not hasattr(parsed, "script_arguments"):
        parsed.parser_of_command.error(f"unrecognized arguments: {' '.join(rest)}")
    if hasattr(parsed, "script_arguments"):
        parsed.script_arguments = rest
    try:
        return int(parsed.run_command(parsed))
    except (CommandError, SageMakerJobError, OSError, RuntimeError) as error:
        sentence = str(error) if isinstance(error, (CommandError, SageMakerJobError)) else about_system(error)
        if parsed.run_command is run.main or sentence is None:
            raise
        print(f"{parsed.parser_of_command.prog}: error: {sentence}", file=sys.stderr)
        drop_output()
        return 2
    except KeyboardInterrupt:
        print(f"{parsed.parser_of_command.prog}: stopped", file=sys.stderr)
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
