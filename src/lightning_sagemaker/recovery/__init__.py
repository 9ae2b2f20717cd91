# SPDX-License-Identifier: Apache-2.0
"""Recovery in the job when a process dies: the rank's side. The host's side is ``supervisor``.

:mod:`.fit` is a Trainer's fit that survives a loss, :mod:`.fabric_loop` a custom loop. Both train by :mod:`.steps`, on
the shards of lost ranks too (:mod:`.data_shards`), keep the last committed state (:mod:`.held`), and after a loss agree
on the remaining ranks (:mod:`.regroup`) through the coordinator (:mod:`.coordinator_client`; messages in :mod:`.wire`).
"""
