# SPDX-License-Identifier: Apache-2.0
"""The command ``lightning-sagemaker``: a table of commands, each in a module of its own.

A command's module has ``HELP``, ``add_arguments(parser)`` and ``main(arguments) -> exit code`` and imports neither torch
nor Lightning at module level, so that help is instant.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

import lightning_sagemaker

COMMANDS = {
    "run": "lightning_sagemaker.recipe_command",
    "ls": "lightning_sagemaker.ls_command",
    "cp": "lightning_sagemaker.cp_command",
    "prepare": "lightning_sagemaker.prepare_command",
    "local": "lightning_sagemaker.launch.local_command",
    "launch": "lightning_sagemaker.launch.launch_command",
    "jobs": "lightning_sagemaker.launch.jobs_command",
    "logs": "lightning_sagemaker.launch.logs_command",
    "stop": "lightning_sagemaker.launch.stop_command",
    "download": "lightning_sagemaker.launch.download_command",
    "metrics": "lightning_sagemaker.metrics_command",
    "convert": "lightning_sagemaker.convert_command",
    "template": "lightning_sagemaker.launch.template_command",
    "image": "lightning_sagemaker.launch.image_command",
    "demo": "lightning_sagemaker.demo_command",
    "doctor": "lightning_sagemaker.doctor",
}


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    parser = argparse.ArgumentParser(prog="lightning-sagemaker", description=lightning_sagemaker.__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--version", action="version", version=lightning_sagemaker.__version__)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, module_name in COMMANDS.items():
        module = import_module(module_name)
        command = commands.add_parser(name, help=module.HELP, description=module.__doc__)
        command.formatter_class = argparse.RawDescriptionHelpFormatter
        module.add_arguments(command)
        command.set_defaults(main=module.main)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the return value is the exit code."""
    parser = build_parser()
    parsed, rest = parser.parse_known_args(arguments)
    if rest and not hasattr(parsed, "script_arguments"):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if hasattr(parsed, "script_arguments"):
        parsed.script_arguments = rest
    return int(parsed.main(parsed))


if __name__ == "__main__":
    sys.exit(main())
