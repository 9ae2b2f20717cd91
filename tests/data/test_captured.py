# SPDX-License-Identifier: Apache-2.0
"""What an order depends on is found where libraries keep it."""

from torch.utils.data import DataLoader, IterableDataset

from lightning_sagemaker.data.captured import Capture


class Shuffle:
    """A stage that draws by the number of the epoch, which it counts itself."""

    def __init__(self):
        self.epoch = 0


class Pipeline(IterableDataset):
    """A list of stages, as webdataset's; a stage may be a loader of another pipeline."""

    def __init__(self, *stages):
        self.pipeline = list(stages)

    def __iter__(self):
        return iter(())


def test_a_stage_of_a_pipeline_in_a_pipeline_goes_on_counting():
    def made():
        shuffle = Shuffle()
        return shuffle, Capture(Pipeline(DataLoader(Pipeline(Shuffle(), shuffle))), is_own=True)

    shuffle, capture = made()
    shuffle.epoch = 3
    taken = capture.take_objects()
    shuffle, capture = made()
    capture.put_objects(taken)
    assert shuffle.epoch == 3
