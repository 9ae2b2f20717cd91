# SPDX-License-Identifier: Apache-2.0
"""What a loader's processes need to pass their batches, and a rehearsal's output."""

import io
import multiprocessing
import tempfile

import pytest
import torch
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch.utils.data import DataLoader, TensorDataset

from lightning_sagemaker.data import sharing
from lightning_sagemaker.simulator.output import lasting


def loader(workers: int) -> DataLoader:
    return DataLoader(TensorDataset(torch.arange(4.0)), batch_size=4, num_workers=workers)


def test_shared_memory_that_cannot_be_written_to(monkeypatch):
    monkeypatch.setattr(sharing, "unusable_shared_memory", lambda: "It is not there. HINT: mount it.")
    sharing.prepare_sharing(loader(0))
    with pytest.raises(MisconfigurationException, match="HINT: mount it"):
        sharing.prepare_sharing(loader(1))


def test_processes_meet_where_paths_are_short(monkeypatch, tmp_path):
    """Without it the loop below has no end."""
    long = tmp_path / ("t" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    monkeypatch.delitem(multiprocessing.current_process()._config, "tempdir", raising=False)
    sharing._shorten.cache_clear()
    sharing.prepare_sharing(loader(1))
    ((batch,),) = loader(1)
    assert batch.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert multiprocessing.util.get_temp_dir().startswith("/tmp/pymp-")
    assert tempfile.gettempdir() == str(long)  # of everything else


class Pipe(io.StringIO):
    """One that nobody reads."""

    def write(self, text):
        raise BrokenPipeError


@pytest.mark.parametrize("stream", [Pipe(), None])
def test_output_that_is_gone_does_not_end_a_job(stream):
    output = lasting(stream)
    assert output.write("line\n") == 5
    output.flush()


def test_output_that_is_there():
    stream = io.StringIO()
    lasting(stream).write("line\n")
    assert stream.getvalue() == "line\n"
