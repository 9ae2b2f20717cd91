# SPDX-License-Identifier: Apache-2.0
"""What DDP does not reduce is named."""

from pathlib import Path

from tests.conftest import fork_ranks


def test_layers_that_ddp_has_wrapped_frozen(tmp_path):
    fork_ranks(Path(__file__).parent / "unfrozen_worker.py", tmp_path, processes=2)
