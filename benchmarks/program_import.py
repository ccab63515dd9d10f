"""Measure how long a new Python interpreter takes to import all modules of the Pulumi program.

Prints `program_import ratio=… ours=… theirs=3.00s`: CPU seconds, which hardly depend on the load of the
machine, compared with the budget of 3 s, for target aws. `program_import_local` is the same for target
kubeconfig, which must not import AWS's SDK at all. The SDKs import a module only when one of its attributes
is used, so the benchmark uses each attribute that occurs in the sources of `infra/`.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import sys

from benchmarks._processes import read_clocks, since
from benchmarks._result_lines import print_ratio
from local.paths import CLONE

BUDGET_SECONDS = 3.0
ROUNDS = 5

LOCAL = "import infra.settings, infra.stack_builder, infra.cluster_preflight, infra.training\n"
AWS = LOCAL + "import infra.target_aws\n"


def source_that_uses(alias: str, package: str) -> str:
    """Return Python source that uses each attribute of SDK `package` (imported as `alias`) that infra/ uses."""
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (CLONE / "infra").glob("*.py"))
    used = sorted(set(re.findall(rf"\b{alias}\.([\w.]+\.[A-Z]\w+|[A-Z]\w+)\b", sources)))
    if not used:
        raise RuntimeError(
            f"infra/ uses no attribute of {package} as `{alias}.NAME`, so there is nothing to measure. "
            f"Fix: correct the name in benchmarks/program_import.py"
        )
    return f"import {package} as {alias}\n" + "".join(f"{alias}.{name}\n" for name in used)


def seconds(script: str) -> float:
    """Return the CPU seconds of a new interpreter that runs this script."""
    began = read_clocks()
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], cwd=CLONE, check=True)
    return since(began)[1]


def main() -> int:
    """Run the benchmark and print its result lines; return 1 if a limit is exceeded."""
    release = source_that_uses("k8s", "pulumi_kubernetes")
    scripts = {
        "program_import": AWS + source_that_uses("aws", "pulumi_aws") + release,
        "program_import_local": LOCAL + release + "import sys; assert 'pulumi_aws' not in sys.modules\n",
    }
    kept = []
    for name, script in scripts.items():
        seconds(script)  # the first one may have to write bytecode
        ours = statistics.median(seconds(script) for _ in range(ROUNDS))
        kept.append(print_ratio(name, ours, BUDGET_SECONDS, most=1.0))
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
