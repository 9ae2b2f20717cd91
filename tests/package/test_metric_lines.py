# SPDX-License-Identifier: Apache-2.0
"""Lines of metrics, and the expressions that read them."""

import re

from lightning_sagemaker.metric_lines import format_line, metric_definitions, names_of


def test_definitions_read_the_lines():
    values = {name: 1.5e-7 if name == "learning_rate" else 12.25 for name in names_of("bert-qa") if name != "epoch"}
    line = format_line({**values, "epoch": 3}, 40)
    for one in metric_definitions(names_of("bert-qa")):
        found = re.search(one["Regex"], line)
        assert float(found.group(1)) == (3 if one["Name"] == "epoch" else values[one["Name"]])
