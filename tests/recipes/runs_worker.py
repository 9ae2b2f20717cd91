# SPDX-License-Identifier: Apache-2.0
"""Two ranks of a launcher that are told no folder: the data is refused, then trained on."""

import json
import os
import time
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path

from lightning_sagemaker.recipes.sequence_classification.train import main
from tests.recipes.test_runs import OPTIONS

if __name__ == "__main__":
    rank = int(os.environ["RANK"])
    options = ["fit", *OPTIONS, "--max_steps", "2"]
    with redirect_stderr(StringIO()) as said:
        try:
            main([*options, "--train_file", "absent.csv"])
        except SystemExit as error:
            Path(f"rank-{rank}.json").write_text(json.dumps({"code": error.code, "said": said.getvalue()}))
    time.sleep(1.5 * rank)  # another second of the clock, so another name
    main(options)
