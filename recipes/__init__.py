# SPDX-License-Identifier: Apache-2.0
"""Complete training programs built on the plugin's public names; each folder is also a SageMaker ``source_dir``."""
