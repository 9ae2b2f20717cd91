# SPDX-License-Identifier: Apache-2.0
"""Convert a checkpoint: a sharded one to a single file, or any checkpoint to a Hugging Face folder.

  lightning-sagemaker convert checkpoints/last.ckpt single.ckpt
  lightning-sagemaker convert checkpoints/last.ckpt model/ --like google-bert/bert-base-uncased

A Trainer with any strategy can resume from the file. With --like, the weights of the LightningModule's transformers
model are written with the configuration (and the tokenizer, if any) of a local folder or a model of the hub.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from lightning_sagemaker.errors import CommandError

HELP = "convert a sharded checkpoint to one file, or any checkpoint to a Hugging Face folder"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``lightning-sagemaker convert``."""
    parser.add_argument("checkpoint", type=Path, help="a Lightning checkpoint: sharded folder or file")
    parser.add_argument("target", type=Path, help="file; with --like, a folder")
    parser.add_argument("--like", metavar="MODEL", help="local folder or hub name whose configuration to use")
    parser.add_argument("--architecture", help="transformers class; default: the one in the configuration")


def main(args: argparse.Namespace) -> int:
    """Convert the checkpoint; return the exit code."""
    from lightning_sagemaker.checkpoint import convert

    try:
        if args.like is None:
            convert.to_file(args.checkpoint, args.target)
        else:
            convert.to_huggingface(args.checkpoint, args.target, args.like, args.architecture)
    except OSError as error:  # of a file, or transformers' about a folder or hub name
        reason = str(error).strip().partition("\n")[0]
        raise CommandError(
            f"{reason} HINT: give an existing checkpoint, a writable target, and with --like a folder with a config.json or"
            " a hub name."
        ) from error
    print(f"Wrote {args.target}.")
    return 0
