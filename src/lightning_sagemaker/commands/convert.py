# SPDX-License-Identifier: Apache-2.0
"""Convert a checkpoint: a sharded one to a single file, or any checkpoint to a Hugging Face folder.

  lightning-sagemaker convert checkpoints/last.ckpt single.ckpt
  lightning-sagemaker convert checkpoints/last.ckpt model/ --like google-bert/bert-base-uncased

A Trainer with any strategy can resume from the file. With --like, the weights of the LightningModule's transformers
model are written with the configuration (and the tokenizer, if any) of a local folder or a model of the hub.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

HELP = "convert a sharded checkpoint to one file, or any checkpoint to a Hugging Face folder"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``lightning-sagemaker convert``."""
    parser.add_argument("checkpoint", type=Path, help="a Lightning checkpoint: sharded folder or file")
    parser.add_argument("target", type=Path, help="file; with --like, a folder")
    parser.add_argument("--like", metavar="MODEL", help="local folder or hub name whose configuration to use")
    parser.add_argument("--architecture", help="transformers class; default: the one in the configuration")


def main(args: argparse.Namespace) -> int:
    """Convert the checkpoint; the exit code is 1 if it cannot be read, or the target cannot be written."""
    from lightning_sagemaker.checkpoint import convert
    from lightning_sagemaker.job import SageMakerJobError

    try:
        if args.like is None:
            convert.to_file(args.checkpoint, args.target)
        else:
            convert.to_huggingface(args.checkpoint, args.target, args.like, args.architecture)
    except SageMakerJobError as error:
        print(f"convert: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        reason = str(error).strip().partition("\n")[0]
        print(
            f"convert: {reason} HINT: give an existing checkpoint, a writable target, and with --like a folder with a"
            " config.json or a hub name.",
            file=sys.stderr,
        )
        return 1
    print(f"Wrote {args.target}.")
    return 0
