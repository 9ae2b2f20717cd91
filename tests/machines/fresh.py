# SPDX-License-Identifier: Apache-2.0
"""A machine that has Debian, Python, make and git, and nothing else: runs the README's commands there, of what is committed.

``python tests/machines/fresh.py --release trixie --user root 'make demo' 'make test'``; needs root and debootstrap. The
machine is a folder; what is mounted into it and what runs in it is in namespaces of its own, and so is gone at the end.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("python3", "python3-venv", "make", "git", "ca-certificates")
INSIDE = "LIGHTNING_SAGEMAKER_TEST_FRESH"
BOUND = ("sys", "dev")
CONFIGURED = ("etc/resolv.conf", "etc/hosts", "etc/ssl/certs/ca-certificates.crt")


def run(*command: object) -> None:
    subprocess.run([str(part) for part in command], check=True)


def make_machine(machine: Path, release: str, mirror: str, packages: list[str]) -> None:
    """Debian with ``packages`` and a user ``me``; nothing if it is there already."""
    ready = machine / ".ready"
    if ready.exists() and ready.read_text().split() == packages:
        return
    shutil.rmtree(machine, ignore_errors=True)
    log = machine.with_suffix(".log")
    with log.open("w") as output:
        include = f"--include={','.join(packages)}"
        made = subprocess.run(
            ["debootstrap", "--variant=minbase", include, release, str(machine), mirror], stdout=output, stderr=output
        )
    if made.returncode:
        sys.exit(f"debootstrap failed:\n{log.read_text()[-1500:]}")
    run("chroot", machine, "useradd", "--create-home", "--shell", "/bin/bash", "me")
    ready.write_text(" ".join(packages))


def bind(machine: Path, path: str) -> None:
    (machine / path).mkdir(parents=True, exist_ok=True)
    run("mount", "--rbind", f"/{path}", machine / path)


def pip_settings(machine: Path) -> dict[str, str]:
    """This machine's settings of pip as variables; the files and folders that they name are put into ``machine``."""
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True).stdout
    variables = {}
    for line in listed.splitlines():
        key, _, value = line.partition("=")
        name, value = key.rpartition(".")[2], value.strip("'")
        variables["PIP_" + name.upper().replace("-", "_")] = value
        for word in value.split():
            path = Path(word.removeprefix("file://").removesuffix("/simple"))
            if path.is_absolute() and path.is_dir():
                bind(machine, str(path).lstrip("/"))
            elif path.is_absolute() and path.is_file():
                copy(machine, path)
    return variables


def copy(machine: Path, path: Path) -> None:
    place = machine / str(path).lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, place)


def bring_project(machine: Path, user: str, keep: bool) -> None:
    """A clone of what is committed, and ``../shared/data`` where there is one."""
    project, data = machine / "srv" / "project", ROOT.parent / "shared" / "data"
    if keep and project.is_dir():
        run("git", "-c", "safe.directory=*", "-C", project, "fetch", "--quiet", ROOT, "HEAD")
        run("git", "-c", "safe.directory=*", "-C", project, "reset", "--quiet", "--hard", "FETCH_HEAD")
    else:
        shutil.rmtree(machine / "srv", ignore_errors=True)
        run("git", "clone", "--quiet", ROOT, project)
        if data.is_dir():
            shutil.copytree(data, machine / "srv" / "shared" / "data")
    run("chroot", machine, "chown", "-R", f"{user}:", "/srv/project")


def run_there(machine: Path, user: str, variables: dict[str, str], command: str) -> int:
    home = "/root" if user == "root" else f"/home/{user}"
    clean = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": home, "LANG": "C.UTF-8", **variables}
    become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"]
    inside = ["bash", "-c", f"cd /srv/project && {command}"]
    return subprocess.run([shutil.which("chroot"), machine, *become, *inside], env=clean).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("commands", nargs="*", default=["make demo", "make test"])
    parser.add_argument("--release", default="bookworm", help="of Debian: bookworm (12), trixie (13), sid (unstable)")
    parser.add_argument("--user", default="me", choices=("me", "root"))
    parser.add_argument("--packages", default="", help="more of Debian's, separated by commas")
    parser.add_argument("--folder", type=Path, default=Path("/var/tmp"), help="where the machines are kept")
    parser.add_argument("--keep", action="store_true", help="keep what was installed into the project's folder")
    parser.add_argument("--mirror", default="http://deb.debian.org/debian")
    arguments = parser.parse_args()
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        sys.exit("A fresh machine needs root and debootstrap. HINT: `apt-get install debootstrap`.")
    if INSIDE not in os.environ:
        os.environ[INSIDE] = "1"
        unshare = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--", sys.executable, *sys.argv]
        os.execvp(unshare[0], unshare)
    machine = arguments.folder / f"lightning-sagemaker-{arguments.release}"
    packages = [*PACKAGES, *filter(None, arguments.packages.split(","))]
    make_machine(machine, arguments.release, arguments.mirror, packages)
    for path in CONFIGURED:
        if Path("/", path).exists():
            copy(machine, Path("/", path))
    run("mount", "-t", "proc", "proc", machine / "proc")
    for path in BOUND:
        bind(machine, path)
    passed_on = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
    variables = {name: value for name, value in os.environ.items() if name.upper() in passed_on}
    variables |= pip_settings(machine)
    bring_project(machine, arguments.user, arguments.keep)
    for command in arguments.commands:
        print(f"== {arguments.release}, {arguments.user}: {command}", flush=True)
        begin = time.monotonic()
        code = run_there(machine, arguments.user, variables, command)
        print(f"== {'failed' if code else 'passed'} in {time.monotonic() - begin:.0f} s: {command}", flush=True)
        if code:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
