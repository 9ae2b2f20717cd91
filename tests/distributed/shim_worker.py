# SPDX-License-Identifier: Apache-2.0
"""What every rank runs of the shim: ``shim_worker.py old|backend torchrun|mpirun OUT`` writes ``OUT/rank-R.json``.

``old`` is a script of SMDDP 1.0 to 1.3: its functions and its own DistributedDataParallel. ``backend`` is one of 1.4 on:
torch.distributed with the backend ``smddp``. ``mpirun`` gives the process Open MPI's variables in the place of torchrun's;
scripts that a real mpirun starts are in test_aws_samples.py.
"""

import importlib.util
import json
import os
import sys
import warnings
from pathlib import Path

import torch
from open_mpi import be_started_by_mpirun
from place import ACCELERATOR, DEVICE

from lightning_sagemaker.smdistributed import importer

importer.install()
SHARDS_ON_CPU = not torch.__version__.startswith("2.5.")  # whose gloo has no reduce_scatter
MODE, LAUNCHER, OUT = sys.argv[1], sys.argv[2], Path(sys.argv[3])
if LAUNCHER == "mpirun":
    be_started_by_mpirun()


def after_backward(wrap) -> torch.nn.Module:
    """A small network with its gradients, each rank with its own part of the data."""
    torch.manual_seed(0)
    with torch.device("cpu"):  # whose random numbers the test has, too
        net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    model = wrap(net.to(DEVICE))
    data = torch.linspace(-1, 1, 32).reshape(8, 4).chunk(int(os.environ.get("WORLD_SIZE", 1)))
    model(data[int(os.environ.get("RANK", 0))]).square().mean().backward()
    return model


def average_of_gradients(wrap) -> list[float]:
    return torch.cat([p.grad.flatten() for p in after_backward(wrap).parameters()]).tolist()


def weights_of_fsdp() -> list[float]:
    """After a step of SGD, with FSDP's first version."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = after_backward(lambda m: FullyShardedDataParallel(m, device_id=DEVICE))
    torch.optim.SGD(model.parameters(), lr=1.0).step()
    with FullyShardedDataParallel.summon_full_params(model, writeback=False):
        return torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()


def weights_of_fully_shard() -> list[float]:
    """After a step of SGD, with FSDP's second version."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(ACCELERATOR, (torch.distributed.get_world_size(),))
    model = after_backward(lambda m: fully_shard(m, mesh=mesh))
    torch.optim.SGD(model.parameters(), lr=1.0).step()
    return torch.cat([p.full_tensor().detach().flatten() for p in model.parameters()]).tolist()


def message(function, *args, **kwargs) -> str:
    outcome = outcome_of(function, *args, **kwargs)
    return outcome if isinstance(outcome, str) else "done"


def outcome_of(function, *args, **kwargs):
    try:
        return function(*args, **kwargs)
    except Exception as error:  # the tests look at what is refused and how
        return f"{type(error).__name__}: {error}"


def old() -> dict:
    import smdistributed.dataparallel.torch.distributed as sdp
    from smdistributed.dataparallel.torch.parallel.distributed import DistributedDataParallel

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        results = {"available": sdp.is_available(), "initialized_before": sdp.is_initialized()}
        sdp.init_process_group("ignored", rank=99)
    results["warnings"] = sorted({str(w.message).split()[0] for w in caught if w.category is DeprecationWarning})
    warnings.simplefilter("ignore")
    rank, size = sdp.get_rank(), sdp.get_world_size()
    results |= {"rank": rank, "size": size, "local_rank": sdp.get_local_rank(), "initialized": sdp.is_initialized()}
    for op in sdp.ReduceOp:
        tensor = torch.tensor([1.0, 2.0]) * (rank + 1)
        sdp.all_reduce(tensor, op)
        results[op.name] = tensor.tolist()
    tensor = torch.tensor([float(rank)])
    work = sdp.all_reduce(tensor, op=sdp.ReduceOp.AVERAGE, async_op=True)
    work.wait()
    results["async_average"] = tensor.tolist()
    tensor = torch.tensor([rank, rank + 10])
    sdp.broadcast(tensor, src=1, group=sdp.group.WORLD)
    results["broadcast"] = tensor.tolist()
    gathered = [torch.zeros(1, dtype=torch.int64) for _ in range(size)]
    sdp.all_gather(gathered, torch.tensor([rank * 7]))
    results["all_gather"] = [int(t) for t in gathered]
    output = torch.zeros(size)
    sdp.all_to_all_single(output, torch.arange(size, dtype=torch.float32) + 10 * rank)
    results["all_to_all_single"] = output.tolist()
    sdp.barrier()
    results["sub_group"] = message(sdp.barrier, group="another")
    results["gradients"] = average_of_gradients(DistributedDataParallel)
    model = DistributedDataParallel(torch.nn.Linear(2, 1), [], broadcast_buffers=False, bucket_cap_mb=1)
    with model.no_sync():
        model(torch.full((1, 2), float(rank))).sum().backward()
    results["no_sync"] = model.module.weight.grad.tolist()
    sdp.init_process_group()  # again: nothing happens
    return results


def backend() -> dict:
    import torch.distributed as dist

    results = {"before": message(dist.init_process_group, "smddp")}
    import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401 - registers the backend

    dist.init_process_group(backend="smddp")
    rank, size = dist.get_rank(), dist.get_world_size()
    results |= {"backend": dist.get_backend(), "found": importlib.util.find_spec("smdistributed") is not None}
    t = torch.ones(2) * (rank + 1)
    for name in ("SUM", "MIN", "MAX", "AVG", "PRODUCT"):
        value = t.clone()
        done = message(dist.all_reduce, value, getattr(dist.ReduceOp, name))
        results[name] = value.tolist() if done == "done" else done
    value = t.clone()
    dist.all_reduce(value, async_op=True).wait()
    results["async"] = value.tolist()
    value = t.clone()
    dist.reduce(value, 0)
    results["reduce"] = value.tolist() if rank == 0 else None
    results["all_gather"] = message(dist.all_gather, [torch.zeros(2) for _ in range(size)], t)
    results["broadcast"] = message(dist.broadcast, t.clone(), 0)
    results["barrier"] = message(dist.barrier)
    results["barrier_device_ids"] = message(dist.barrier, device_ids=[0])
    results["all_gather_into_tensor"] = message(dist.all_gather_into_tensor, torch.zeros(2 * size), t)
    results["reduce_scatter"] = message(dist.reduce_scatter, t.clone(), [t.clone() for _ in range(size)])
    results["reduce_scatter_tensor"] = message(dist.reduce_scatter_tensor, torch.zeros(1), torch.ones(size))
    results["all_to_all_single"] = message(dist.all_to_all_single, torch.zeros(size), torch.ones(size))
    results["gather"] = message(dist.gather, t, [torch.zeros(2) for _ in range(size)] if rank == 0 else None)
    results["scatter"] = message(dist.scatter, torch.zeros(2), [t] * size if rank == 0 else None)
    send_or_receive = (dist.send, 1) if rank == 0 else (dist.recv, 0)
    results["send_recv"] = message(send_or_receive[0], t.clone(), send_or_receive[1])
    results["new_group"] = message(dist.new_group, [0, 1])
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    results["objects"] = objects
    results["gradients"] = average_of_gradients(torch.nn.parallel.DistributedDataParallel)
    if SHARDS_ON_CPU:
        results |= {"fsdp": outcome_of(weights_of_fsdp), "fully_shard": outcome_of(weights_of_fully_shard)}
    return results


if __name__ == "__main__":
    torch.set_default_device(DEVICE)
    results = {"old": old, "backend": backend}[MODE]()
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / f"rank-{os.environ.get('RANK', os.environ.get('OMPI_COMM_WORLD_RANK', '0'))}.json").write_text(
        json.dumps(results)
    )
