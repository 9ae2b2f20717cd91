# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from torch import nn

from lightning_sagemaker.parallel import delayed, tape
from tests.distributed.models import MODELS, SHARED


class Odd(nn.Module):
    """Ways of making parameters that people have."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn = nn.Parameter(torch.randn(50, 50) * 2)
        nn.init.trunc_normal_(self.drawn, std=0.02)
        self.orthogonal = nn.Parameter(nn.init.orthogonal_(torch.empty(40, 40)))
        self.copied = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32), 3)  # by deepcopy
        self.part = nn.Parameter(self.orthogonal.data[:3])
        self.data = nn.Parameter(torch.tensor([1.0, 2.0]), requires_grad=False)
        self.padded = nn.Embedding(9, 4, padding_idx=2)
        self.tied = self.padded.weight
        self.rates = [rate.item() for rate in torch.linspace(0, 1, 5)]
        self.weight_norm = nn.utils.parametrizations.weight_norm(nn.Linear(7, 7))
        self.listed = nn.ParameterList([torch.ones(3), torch.rand(3)])
        self.scaled = nn.Parameter(torch.ones(3) / self.drawn.abs().sum())
        self.scaled.kind = "scale"
        self.norm = nn.BatchNorm1d(4)
        self.load_state_dict({key: value * 2 for key, value in self.state_dict().items()})


@pytest.mark.parametrize("in_use", [512, 64 * 2**20])
@pytest.mark.parametrize("name", [*MODELS, *SHARED, "odd"])
def test_a_delayed_model_is_the_one_built_as_always(name, in_use, monkeypatch):
    monkeypatch.setattr(tape, "_IN_USE", in_use)
    monkeypatch.setattr(tape, "_SMALL", min(in_use, 2**16))
    make = {**MODELS, **SHARED, "odd": Odd}[name]
    torch.manual_seed(3)
    expected, after = make(), torch.rand(1)
    torch.manual_seed(3)
    with delayed.delayed_parameters():
        found = make()
    assert torch.equal(torch.rand(1), after)
    assert all(parameter.is_meta for parameter in found.parameters())
    assert not any(buffer.is_meta for buffer in found.buffers())
    parameters = list(found.parameters())
    optimizer = torch.optim.SGD(parameters, 0.1)
    delayed.materialize(found)
    assert [id(parameter) for parameter in found.parameters()] == [id(parameter) for parameter in parameters]
    assert optimizer.param_groups[0]["params"][0] is parameters[0]
    named = [(one.named_parameters(), one.named_buffers()) for one in (expected, found)]
    for pairs in zip(*named, strict=True):
        for (key, one), (other_key, other) in zip(*pairs, strict=True):
            assert key == other_key
            assert torch.equal(one, other), key
            assert one.requires_grad == other.requires_grad
            assert vars(one) == vars(other)


def test_what_is_tied_stays_so():
    with delayed.delayed_parameters():
        model = Odd()
    assert model.tied is model.padded.weight
    delayed.materialize(model, lambda name: name == "tied" or name.startswith("padded"))
    assert model.tied is model.padded.weight
    assert not model.tied.is_meta
    assert model.drawn.is_meta


def test_a_recurrent_net_keeps_its_parameters():
    """It has weak references to them, which no other tensor may take the place of."""
    torch.manual_seed(0)
    expected = nn.LSTM(4, 4)
    torch.manual_seed(0)
    with delayed.delayed_parameters():
        found = nn.LSTM(4, 4)
    assert all(torch.equal(one, other) for one, other in zip(expected.parameters(), found.parameters(), strict=True))


def test_within_itself_it_does_nothing_and_an_error_passes():
    with delayed.delayed_parameters(), delayed.delayed_parameters():
        linear = nn.Linear(2, 2)
    assert linear.weight.is_meta
    made = []
    with pytest.raises(ZeroDivisionError), delayed.delayed_parameters():
        made.append(nn.Linear(2, 2)) or made.append(1 // 0)
    assert made[0].weight.is_meta
    assert not nn.Linear(2, 2).weight.is_meta


def test_loaded_values_are_those_that_parameters_get(recwarn, tmp_path):
    state = nn.Linear(3, 3).state_dict()
    torch.save(state, tmp_path / "weights.pt")
    with delayed.delayed_parameters():
        within, after = nn.Linear(3, 3), nn.Linear(3, 3)
        within.load_state_dict(torch.load(tmp_path / "weights.pt", mmap=True, weights_only=True))
    with torch.device("meta"):
        on_meta = nn.BatchNorm1d(3)
    norm = nn.BatchNorm1d(3)
    norm.running_mean.fill_(4)
    for module, content in ((after, state), (on_meta, norm.state_dict())):
        with delayed.loading(module, content):
            module.load_state_dict(content)
    for module in (within, after, on_meta):
        delayed.materialize(module)
    for module in (within, after):
        assert torch.equal(module.weight, state["weight"])
    assert on_meta.running_mean.tolist() == [4, 4, 4]
    with torch.no_grad():
        after.weight.zero_()
    assert state["weight"].any()  # the file's, and the caller's, are not written into
    assert not recwarn.list


def test_safetensors_are_read_where_they_are_needed(tmp_path):
    from safetensors.torch import load_file, save_file

    state = nn.Linear(3, 3).state_dict()
    save_file(state, tmp_path / "weights.safetensors")
    with delayed.delayed_parameters():
        linear = nn.Linear(3, 3)
        linear.load_state_dict(load_file(tmp_path / "weights.safetensors"))
    delayed.materialize(linear)
    assert torch.equal(linear.weight, state["weight"])


def test_a_model_from_a_folder_is_that_model(tmp_path):
    import transformers

    model = MODELS["bert-mlm"]()
    model.save_pretrained(tmp_path)
    kind = transformers.BertForMaskedLM
    with delayed.delayed_parameters():
        found = kind.from_pretrained(tmp_path)
    delayed.materialize(found)
    for (name, one), (_, other) in zip(model.named_parameters(), found.named_parameters(), strict=True):
        assert torch.equal(one, other), name
    assert torch.equal(model.bert.embeddings.position_ids, found.bert.embeddings.position_ids)


def test_the_whole_state_has_values():
    torch.manual_seed(1)
    expected = Odd().state_dict()
    torch.manual_seed(1)
    with delayed.delayed_parameters():
        model = Odd()
    found = delayed.full_state(model, model.state_dict())
    assert model.drawn.is_meta
    assert all(torch.equal(value, found[name]) for name, value in expected.items())


def test_another_type_is_kept():
    with delayed.delayed_parameters():
        linear = nn.Linear(3, 3)
    linear.to(torch.bfloat16)
    delayed.materialize(linear)
    assert linear.weight.dtype is torch.bfloat16


def test_parameters_look_like_a_processors_on_shapes():
    with delayed.delayed_parameters():
        model = Odd()
    with delayed.on_shapes(model):
        assert model.drawn.device.type == "cpu"
        assert model.tied is model.padded.weight
        assert isinstance(model.drawn, nn.Parameter)
    assert model.drawn.is_meta
    delayed.free(model.drawn)
    assert model.drawn.numel() == 0
    assert model.drawn.device.type == "cpu"
