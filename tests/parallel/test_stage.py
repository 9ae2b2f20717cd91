# SPDX-License-Identifier: Apache-2.0
"""Two stages after each other give what the whole model gives, of modules for which torch has functions of their own."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from lightning_sagemaker.parallel.chain import find_cut
from lightning_sagemaker.parallel.degrees import PipelineError
from lightning_sagemaker.parallel.stage import Stages

TOKENS, LENGTHS = torch.randint(0, 9, (4, 6), generator=torch.Generator().manual_seed(0)), torch.tensor([6, 2, 5, 3])


class Encoder(nn.Module):
    """With a padding mask, which torch leaves out of an evaluation by nested tensors."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.embed, self.layers, self.head = nn.Embedding(9, 8), nn.TransformerEncoder(layer, 2), nn.Linear(8, 3)

    def forward(self, tokens, lengths):
        padding = torch.arange(tokens.shape[1]) >= lengths[:, None]
        return self.head(self.layers(self.embed(tokens), src_key_padding_mask=padding)[:, 0])


class Parts(nn.Module):
    """The mean of all layers' outputs: only a split before the layers is possible, so that their parts are the blocks."""

    def __init__(self):
        super().__init__()
        layers = [nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(2)]
        self.embed, self.layers, self.head = nn.Embedding(9, 8), nn.ModuleList(layers), nn.Linear(8, 3)

    def forward(self, tokens, lengths):
        states = [self.embed(tokens)]
        for layer in self.layers:
            states.append(layer(states[-1]))
        return self.head(torch.stack(states).mean(0)[:, 0])


class Recurrent(nn.Module):
    """Of packed sequences."""

    def __init__(self):
        super().__init__()
        self.embed, self.net = nn.Embedding(9, 8), nn.LSTM(8, 4, 2, batch_first=True, bidirectional=True)
        self.head = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, tokens, lengths):
        packed = pack_padded_sequence(self.embed(tokens), lengths, batch_first=True, enforce_sorted=False)
        _, (state, _) = self.net(packed)
        return self.head(torch.cat([state[-2], state[-1]], 1))


def by_stages(model):
    received = None
    for stage in range(2):
        own = copy.deepcopy(model)
        blocks, traced, partition = find_cut(own, lambda part: own(*part), (TOKENS, LENGTHS), 2, 0.8)  # noqa: B023
        stages = Stages(own, blocks, traced, partition, (stage,), torch.device("cpu"))
        result, received = stages.run(stage, lambda: own(TOKENS, LENGTHS), received)  # noqa: B023
    return result


@pytest.mark.parametrize("model", [Encoder, Parts, Recurrent])
def test_an_evaluation(model):
    torch.manual_seed(0)
    network = model().eval()
    with torch.no_grad():
        torch.testing.assert_close(by_stages(network), network(TOKENS, LENGTHS))
    assert torch.backends.mha.get_fastpath_enabled()


def test_dropped_blocks_are_refused_with_a_hint():
    torch.manual_seed(0)
    model = Encoder()
    blocks, traced, partition = find_cut(model, lambda part: model(*part), (TOKENS, LENGTHS), 2, 0.8)
    stages = Stages(model, blocks, traced, partition, (0,), torch.device("cpu"))
    with pytest.raises(PipelineError, match=r"1 was called where layers\.layers\.0 was expected.* HINT: .*layerdrop"):
        stages.run(0, lambda: model.layers.layers[1](model.embed(TOKENS)), None)
