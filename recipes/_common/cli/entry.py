# SPDX-License-Identifier: Apache-2.0
"""Entry point of every recipe's ``train.py``, which is a module of the package and a script that SageMaker calls."""

from __future__ import annotations

import importlib.util
import sys
from argparse import ArgumentError
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from lightning_sagemaker import SageMakerJob, SageMakerJobError
from lightning_sagemaker.errors import about_system, is_full
from lightning_sagemaker.pipes import quiet_pipe
from lightning_sagemaker.recipe_packages import has_packages
from lightning_sagemaker.recipes._common.cli.arguments import (
    SUBCOMMANDS,
    ArgumentNameError,
    EmptyOptionError,
    RepeatedOptionError,
)
from lightning_sagemaker.recipes._common.cli.help import HELP, HELP_ALL, help_text
from lightning_sagemaker.recipes._common.cli.recipe import Recipe

DEBUG = "--debug"
"""Option that shows the traceback of an error instead of its message only."""


def run_recipe(package: str, arguments: Sequence[str] | None = None) -> None:
    """Run one stage of the recipe in ``package``, or print its help; ``arguments`` are ``sys.argv[1:]`` by default.

    An unknown or wrong option, or an error whose message has a ``HINT:``, ends the program with that message and exit
    code 2. Its traceback is shown with ``--debug``; that of the latter in a container too, where only the log remains.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    recipe: Recipe = import_module(f"{package}.recipe").RECIPE
    with quiet_pipe():
        if any(word in HELP for word in given):
            _print_help(recipe)
        elif not has_packages():
            sys.exit(1)
        elif HELP_ALL in given:
            _run(recipe, [given[0] if given[0] in SUBCOMMANDS else SUBCOMMANDS[0], HELP[0]], debug=False)
        else:
            _run(recipe, [word for word in given if word != DEBUG], debug=DEBUG in given)


def _print_help(recipe: Recipe) -> None:
    try:
        print(help_text(recipe))
    except OSError as error:
        if not is_full(error):
            raise
        _end(about_system(error))


def _run(recipe: Recipe, words: list[str], debug: bool) -> None:
    from lightning_sagemaker.recipes._common.cli.recipe_cli import RecipeCLI
    from lightning_sagemaker.recipes._common.data.data_module import SharedError

    try:
        RecipeCLI(recipe, words)
    except (ArgumentNameError, EmptyOptionError, RepeatedOptionError) as error:
        if debug:
            raise
        _end(str(error))
    except ArgumentError as error:  # a value of the wrong type, a file of settings that is not there
        if debug:
            raise
        _end(f"{error} HINT: `lightning-sagemaker run {recipe.name} --help-all` lists the options.")
    except Exception as error:
        sentence = about_system(error) or str(error)
        if debug or "HINT:" not in sentence or _is_in_container():
            raise
        is_said = isinstance(error, SharedError) and error.rank  # by rank zero
        _end(None if is_said else sentence)


def _is_in_container() -> bool:
    try:
        return SageMakerJob.from_environment().in_container
    except SageMakerJobError:  # that is what is to be shown
        return False


def _end(message: str | None) -> NoReturn:
    """End the program as argparse does for wrong input, with the message on one line."""
    if message is not None:
        print(f"error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)


def use_folder(package: str, script: str) -> None:
    """Import the folder of ``script`` under the name ``package``, so that a copy of the recipe uses its own code."""
    folder = Path(script).resolve().parent
    spec = importlib.util.spec_from_file_location(
        package, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[package] = module
    spec.loader.exec_module(module)
