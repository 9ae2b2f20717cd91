# SPDX-License-Identifier: Apache-2.0
"""Data for several processes.

Three kinds of modules, of which these are the entries:

- batches whose samples do not depend on the number of processes: :mod:`.loader`, :mod:`.batches`, :mod:`.order`
- the positions of loaders in checkpoints: :mod:`.tracked` follows any loader without changes to the script,
  :mod:`.position` is what is saved and restored; the modules around them are for kinds of loaders, and for workers
- rows in S3: :mod:`.streamed`, over :mod:`.block_store` (a cache on the host's disk) and :mod:`.s3_objects`
"""
