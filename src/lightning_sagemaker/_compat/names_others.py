# SPDX-License-Identifier: Apache-2.0
"""Every private name of the SDKs, of transformers and of Python that this package uses.

A missing one is an error where it is used, as these packages are imported on use. A test compares the table with
the source, and with the packages.
"""

from __future__ import annotations

NAMES: dict[str, tuple[str, ...]] = {
    "atexit": ("_run_exitfuncs",),
    "lightning.fabric.utilities.rank_zero": ("_get_rank",),
    "multiprocessing.process:BaseProcess": ("_popen",),
    "os": ("_exit",),
    "runpy": ("_run_module_as_main",),
    "s3torchconnector._s3client": ("S3Client",),
    "sagemaker.train.model_trainer:ModelTrainer": ("_create_training_job_args",),
    "sys": ("_current_frames", "_getframe"),
    "threading": ("_shutdown",),
    "warnings": ("_filters_mutated",),
}
"""Module, or module and class -> names that it must have, on itself or on its objects."""

OPTIONAL = {"_init_weights", "_initializing", "_no_split_modules", "_tied_weights_keys", "_to_request_dict"}
"""Names that are tested with ``hasattr`` first, since only some classes or versions have them."""
