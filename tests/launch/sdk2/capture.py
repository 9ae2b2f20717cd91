# SPDX-License-Identifier: Apache-2.0
"""Runs every call by the real SDK 2 and keeps what it sends: ``make oracle`` runs it in an environment with ``sagemaker<3``.

What stands for AWS: an event of botocore, ``before-send``, at which every request has been validated and serialized and is
about to leave. It is written down and answered there, so no network, account or stand-in for the SDK is involved.
``--new`` runs only the calls that are not kept yet.
"""

import contextlib
import functools
import inspect
import io
import json
import logging
import os
import sys
import tempfile
import types
from xml.sax.saxutils import escape

import boto3
import sagemaker
from botocore.awsrequest import AWSResponse
from sagemaker import debugger
from sagemaker.huggingface import HuggingFace
from sagemaker.inputs import FileSystemInput, ShuffleConfig, TrainingInput
from sagemaker.instance_group import InstanceGroup
from sagemaker.pytorch import PyTorch

from tests.launch.sdk2 import sources
from tests.launch.sdk2.arguments import ARGUMENTS
from tests.launch.sdk2.calls import CALLS, ROLE
from tests.launch.sdk2.compare import FILE, golden
from tests.launch.sdk2.normal import of_sdk2

IDENTITY = (
    "<GetCallerIdentityResponse><GetCallerIdentityResult><Arn>arn:aws:iam::123456789012:user/a</Arn><UserId>A</UserId>"
    "<Account>123456789012</Account></GetCallerIdentityResult></GetCallerIdentityResponse>"
)
GET_ROLE = (
    "<GetRoleResponse><GetRoleResult><Role><Path>/</Path><RoleName>training</RoleName><RoleId>A</RoleId>"
    f"<Arn>{escape(ROLE)}</Arn><CreateDate>2026-01-01T00:00:00Z</CreateDate></Role></GetRoleResult></GetRoleResponse>"
)
BUCKETS = (
    "<ListAllMyBucketsResult><Buckets><Bucket><Name>sagemaker-us-east-1-123456789012</Name></Bucket></Buckets>"
    "</ListAllMyBucketsResult>"
)


class Wire:
    """Answers every request of a boto3 session, and keeps those that create something."""

    def __init__(self):
        self.sent = []

    def session(self):
        session = boto3.Session("AKIAEXAMPLE", "secret", region_name="us-east-1")
        session.events.register("before-send", self.answer)
        return sagemaker.Session(boto_session=session)

    def answer(self, request, **_):
        action = (request.headers.get("X-Amz-Target") or b"").decode().rpartition(".")[2]
        body = request.body.decode(errors="replace") if isinstance(request.body, bytes) else str(request.body)
        if action:
            self.sent.append((action, json.loads(body)))
            answer = json.dumps({"TrainingJobArn": "arn:aws:sagemaker:us-east-1:123456789012:training-job/x"})
        elif "sts" in request.url:
            answer = IDENTITY
        elif "iam" in request.url:
            answer = GET_ROLE
        elif request.method == "GET" and "s3" in request.url:
            answer = BUCKETS
        else:
            answer = ""
        headers = {"Content-Type": "application/json" if action else "text/xml", "ETag": '"x"'}
        return AWSResponse(request.url, 200, headers, _Raw(answer.encode()))


class _Raw(io.BytesIO):
    def stream(self, *_, **__):
        yield self.read()


def names(session):
    """What a call is given: SDK 2's own classes, with a session, that do not wait."""

    def bound(kind):
        def start(self, *given, **arguments):
            kind.__init__(self, *given, **{**arguments, "sagemaker_session": session})

        def fit(self, inputs=None, **more):
            kind.fit(self, inputs, **{**more, "wait": False})

        return type(kind.__name__, (kind,), {"__init__": start, "fit": fit})

    return types.SimpleNamespace(
        PyTorch=bound(PyTorch),
        HuggingFace=bound(HuggingFace),
        TrainingInput=TrainingInput,
        FileSystemInput=FileSystemInput,
        ShuffleConfig=ShuffleConfig,
        InstanceGroup=InstanceGroup,
        TensorBoardOutputConfig=debugger.TensorBoardOutputConfig,
        debugger=debugger,
    )


def run(function, wire, sdk):
    """What a call sends and returns, or the error."""
    wire.sent.clear()
    try:
        returned = function(sdk)
    except Exception as error:  # of any kind: it is what the user gets
        return {"error": f"{type(error).__name__}: {str(error).splitlines()[0][:100] if str(error) else ''}"}
    requests = [of_sdk2(body) for action, body in wire.sent if action == "CreateTrainingJob"]
    return {"requests": requests, "returned": returned}


def signature(kind):
    """Names of the arguments, over the classes that a class is made of."""
    found = {}
    for one in kind.__mro__:
        if "__init__" in vars(one):
            for name, parameter in inspect.signature(one.__init__).parameters.items():
                if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL) and name != "self":
                    found[name] = None
    return sorted(found)


def main():
    logging.disable(logging.CRITICAL)
    sagemaker.utils._botocore_resolver = functools.cache(
        sagemaker.utils._botocore_resolver
    )  # reads a file at each call
    kinds = (PyTorch, HuggingFace, TrainingInput, FileSystemInput)
    signatures = {kind.__name__: signature(kind) for kind in kinds}
    for kind, arguments in signatures.items():
        if set(arguments) != ARGUMENTS[kind]:
            sys.exit(f"{kind}: arguments.py and SDK 2 differ in {sorted(set(arguments) ^ ARGUMENTS[kind])}")
    here = os.getcwd()
    found = {name: one for name, one in golden()["calls"].items() if name in CALLS} if "--new" in sys.argv else {}
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        os.chdir(folder)
        sources.make()
        wire = Wire()
        sdk = names(wire.session())
        for name, function in CALLS.items():
            if name not in found:
                found[name] = run(function, wire, sdk)
        os.chdir(here)
    found = {name: found[name] for name in CALLS}
    methods = sorted(name for name in {*dir(PyTorch), *dir(HuggingFace)} if name[0].islower())
    content = {"version": sagemaker.__version__, "signatures": signatures, "methods": methods, **shrunk(found)}
    FILE.write_text(text_of(content))
    errors = {name: one["error"] for name, one in found.items() if "error" in one}
    print(
        f"sagemaker {sagemaker.__version__}: {len(found)} calls, {len(errors)} refused by it", *errors.items(), sep="\n"
    )


def text_of(content):
    """JSON with a call on each line, by name."""
    calls = ",\n".join(
        f"{json.dumps(name)}: {json.dumps(one, sort_keys=True)}" for name, one in sorted(content["calls"].items())
    )
    head = ",\n".join(
        f"{json.dumps(name)}: {json.dumps(one, sort_keys=True)}"
        for name, one in sorted(content.items())
        if name != "calls"
    )
    return f'{{{head},\n"calls": {{\n{calls}\n}}}}\n'


def shrunk(found):
    """Each request as what it changes in the first: so the file stays small."""
    base = next(one["requests"][0] for one in found.values() if one.get("requests"))
    calls = {}
    for name, one in found.items():
        calls[name] = dict(one)
        if "requests" in one:
            calls[name]["requests"] = [changes(request, base) for request in one["requests"]]
    return {"base": base, "calls": calls}


def changes(request, base):
    changed = {name: value for name, value in request.items() if base.get(name, ...) != value}
    return {"set": changed, "without": sorted(name for name in base if name not in request)}


if __name__ == "__main__":
    main()
