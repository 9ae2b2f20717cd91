# SPDX-License-Identifier: Apache-2.0
"""Mirrors ``smdistributed.modelparallel.test.torch.utils``, which AWS's BERT sample imports. It is undocumented."""

from __future__ import annotations

from lightning_sagemaker.parallel.degrees import ParallelConfigError


def dump_model(*_: object, **__: object) -> None:
    """Refused.

    Raises:
        ParallelConfigError: Always.

    """
    raise _undocumented("dump_model")


def verify(*_: object, **__: object) -> None:
    """Refused.

    Raises:
        ParallelConfigError: Always.

    """
    raise _undocumented("verify")


def _undocumented(name: str) -> ParallelConfigError:
    return ParallelConfigError(
        f"smdistributed.modelparallel.test.torch.utils.{name} was called, which is undocumented by AWS. HINT: compare"
        " model.state_dict() of two runs instead."
    )
