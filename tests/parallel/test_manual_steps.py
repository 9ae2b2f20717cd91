# SPDX-License-Identifier: Apache-2.0
"""A step of manual optimization uses a sharded module several times."""

from pathlib import Path

from tests.conftest import fork_ranks
from tests.skips import needs_shards


@needs_shards
def test_a_step_with_several_backward_passes(tmp_path):
    fork_ranks(Path(__file__).parent / "manual_steps_worker.py", tmp_path, processes=2)
