# SPDX-License-Identifier: Apache-2.0
"""Values of other stages have the right shape, are followed through what is computed from them, and refused when used."""

import pytest
import torch
from torch import nn

from lightning_sagemaker.parallel.absent import Absent, check, fill, is_marked
from lightning_sagemaker.parallel.degrees import PipelineError


@pytest.fixture
def absent():
    layer = nn.Linear(4, 3)
    mode = Absent({id(one): torch.empty_like(one, device="meta") for one in layer.parameters()})
    return layer, mode


def test_they_are_nan_and_what_is_computed_from_them_is_known(absent):
    layer, mode = absent
    with torch.no_grad(), mode:
        given = torch.ones(2, 4)
        hidden = layer(given)
        derived, own = torch.relu(hidden)[:, :2] + 1, given * 2
        written = torch.zeros(2, 3)
        written[0] = hidden[0]
    assert hidden.shape == (2, 3)
    assert hidden.isnan().all()
    assert all(map(is_marked, (hidden, derived, written)))
    assert not any(map(is_marked, (given, own)))


def test_in_the_stage_s_own_part_they_have_shapes_only(absent):
    layer, mode = absent
    with torch.no_grad(), mode:
        hidden = layer(torch.ones(2, 4))
        mode.is_over = True
        assert (hidden.shape, hidden.dtype, len(hidden), hidden.dim()) == ((2, 3), torch.float32, 2, 2)
        view = hidden[:, 0].float()
        for use in (
            lambda: hidden + 1,
            lambda: torch.stack([view]),
            lambda: view.sum(),
            view[0].item,
            lambda: bool(view[0]),
        ):
            with pytest.raises(PipelineError, match="which an earlier pipeline stage has computed.* HINT"):
                use()
        assert torch.ones(2).sum() == 2
        assert (layer.weight.dtype, layer.weight.shape) == (torch.float32, (3, 4))
        with pytest.raises(PipelineError, match="HINT"):
            layer.weight.t()
    with pytest.raises(PipelineError, match=r"uses \(in what it returns\)"):
        check({"loss": torch.ones(()), "states": [view]}, "in what it returns")


def test_what_was_sent_is_theirs(absent):
    layer, mode = absent
    with torch.no_grad(), mode:
        hidden = layer(torch.ones(2, 4))
        fill(hidden, torch.ones(2, 3))
        mode.is_over = True
        assert (hidden + 1).sum() == 12
    check(hidden, "")
