# SPDX-License-Identifier: Apache-2.0
"""The package that AWS's images have installed: on the PYTHONPATH of simulated jobs, so that scripts run unchanged."""

from pkgutil import extend_path

from lightning_sagemaker.smdistributed import importer

__path__ = extend_path(__path__, __name__)  # AWS's libraries, where one is installed, are found through here
importer.install()
