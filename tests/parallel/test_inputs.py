# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from lightning_sagemaker.parallel.inputs import NotSent, NotSentError, Reads, shape_of
from lightning_sagemaker.parallel.microbatches import Cut


def test_what_was_not_sent_has_a_shape_and_is_cut_like_the_rest():
    tensor = NotSent.of((5, 3), torch.int64)
    assert (tensor.shape, tensor.dtype, len(tensor), tensor.dim()) == ((5, 3), torch.int64, 5, 2)
    parts = Cut(2)({"one": tensor, "other": torch.ones(5)}).parts
    assert [type(part["one"]) for part in parts] == [NotSent, NotSent]
    assert [part["one"].shape[0] for part in parts] == [3, 2]
    assert type(tensor.to("cpu")) is NotSent
    assert "NotSent((5, 3))" in repr([tensor])
    assert shape_of(tensor).is_meta


@pytest.mark.parametrize(
    "read",
    [
        lambda tensor: tensor + 1,
        lambda tensor: tensor[0].clone() * 2,
        lambda tensor: tensor[torch.zeros(1, dtype=torch.long)],
        lambda tensor: tensor.item(),
        lambda tensor: bool(tensor.any()),
        lambda tensor: tensor.tolist(),
        lambda tensor: tensor.numpy(),
        lambda tensor: torch.cat([torch.ones(1), tensor]),
        lambda tensor: torch.nn.functional.embedding(tensor, torch.ones(3, 3)),
        lambda tensor: torch.ones(1).copy_(tensor),
    ],
)
def test_reading_it_is_an_error(read):
    with pytest.raises(
        NotSentError, match=r"did not read in the first step.*HINT: pass SMPStrategy\(whole_batches=True\)"
    ):
        read(NotSent.of((1,), torch.int64))


def test_reads_are_noted_and_questions_about_shapes_are_not():
    parts = [[torch.ones(2), torch.zeros(2), torch.ones(1)] for _ in range(2)]
    with Reads(parts) as reads:
        assert parts[0][0].shape == parts[0][0].size()
        assert parts[0][0].dtype is torch.float32
        shape_of(parts[0][0])
        assert parts[1][1].sum() == 0
        torch.stack([torch.ones(1), parts[0][2]])
    assert reads.found == {1, 2}


def test_another_form_is_read_when_something_uses_it():
    images, ids, labels, notes = (torch.ones(2, 3) for _ in range(4))
    with Reads([[images, ids, labels, notes]]) as reads:
        flat = images.flatten(1).float()[:, :2]
        assert torch.flatten(ids).shape == (6,)
        half = labels.chunk(2)[1]
    assert reads.found == set()
    with reads:
        assert (flat + 1).sum() == 8
        reads.record_result({"loss": torch.zeros(1), "labels": [half]})
    assert reads.found == {0, 2}
    assert type(NotSent.of((2, 3), torch.float32).flatten(1)[:, :2]) is NotSent
