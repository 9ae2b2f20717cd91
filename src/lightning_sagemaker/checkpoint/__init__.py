# SPDX-License-Identifier: Apache-2.0
"""Writes and reads checkpoints, and the training state that no ``state_dict`` has; exports models.

Three kinds of modules, of which these are the entries:

- files: :mod:`.io` (one file, written by :mod:`.atomic_write`), :mod:`.sharded` (:mod:`.background` writes it
  asynchronously), :mod:`.s3`, :mod:`.host_memory`; :mod:`.find` chooses the one to resume from, by :mod:`.integrity`
- state of a script's own objects, which a fit or a loop puts into its checkpoint: :mod:`.attributes`,
  :mod:`.own_states`, :mod:`.metric_state`, :mod:`.fit_random`; the modules around them find the objects and copy values
- after the training: :mod:`.convert`, :mod:`.export`
"""
