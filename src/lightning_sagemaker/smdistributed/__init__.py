# SPDX-License-Identifier: Apache-2.0
"""An open stand-in for AWS's ``smdistributed``, over gloo and nccl: the same import paths, names and refusals.

``importer.install()`` makes ``import smdistributed...`` find this package where AWS's is absent.
"""
