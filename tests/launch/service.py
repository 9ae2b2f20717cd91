# SPDX-License-Identifier: Apache-2.0
"""AWS on this machine's loopback: moto's server, with the parts of SageMaker training that moto lacks.

What moto answers: S3, STS, IAM, CloudWatch Logs. What it has no action for, or keeps no request of, is
answered here: CreateTrainingJob, DescribeTrainingJob, ListTrainingJobs, StopTrainingJob, the account's quotas, and
IAM's SimulatePrincipalPolicy, which the SageMaker SDK asks about the role (everything is allowed). Requests are checked
against botocore's own model of the API. A job can be really run: see ``Service.run_job``.
"""

import contextlib
import io
import json
import threading
import time
from collections.abc import Callable
from datetime import datetime, timezone
from urllib.parse import parse_qsl

import boto3
from botocore.model import ServiceModel
from botocore.session import get_session
from botocore.validate import ParamValidator
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server
from werkzeug.wrappers import Request, Response

REGION = "us-east-1"
ROLE = "arn:aws:iam::123456789012:role/training"
TRUST = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Principal": {"Service": "sagemaker.amazonaws.com"}, "Action": "sts:AssumeRole"}],
}
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": REGION,
    "AWS_EC2_METADATA_DISABLED": "true",
}
_TARGET = "SageMaker."


class Service:
    """The server and what it was sent.

    Attributes:
        requests: Job name -> the CreateTrainingJob request as it came over HTTP.
        calls: Every ``Service.Action`` and S3 method, in order.
        run_job: Called in a thread with a request; returns ``(status, failure reason)``. None completes at once.

    """

    def __init__(self) -> None:
        self.requests: dict[str, dict] = {}
        self.jobs: dict[str, dict] = {}
        self.calls: list[str] = []
        self.stopped: set[str] = set()
        self.run_job: Callable[[dict], tuple[str, str]] | None = None
        self.quotas: list[dict] = []
        self.queued: dict[str, list] = {}
        self.errors: dict[str, tuple[int, str, str]] = {}
        moto = DomainDispatcherApplication(create_backend_app)
        model = ServiceModel(get_session().get_component("data_loader").load_service_model("sagemaker", "service-2"))
        self._shape = model.operation_model("CreateTrainingJob").input_shape

        def application(environ, start_response):
            target = environ.get("HTTP_X_AMZ_TARGET", "")
            self.calls.append(target or f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}")
            action = target.removeprefix(_TARGET)
            if action in self.errors:
                return _error(*self.errors[action])(environ, start_response)
            if "iam" in environ.get("HTTP_AUTHORIZATION", ""):
                body = Request(environ).get_data()
                if b"Action=SimulatePrincipalPolicy" in body:
                    return _simulated(body)(environ, start_response)
                environ["wsgi.input"] = io.BytesIO(body)
            if environ["PATH_INFO"] in ("/v1/submitservicejob", "/v1/describeservicejob"):
                return self._batch(environ["PATH_INFO"], json.loads(Request(environ).get_data()))(
                    environ, start_response
                )
            if target.endswith(".ListServiceQuotas"):
                return _json({"Quotas": self.quotas})(environ, start_response)
            if target.startswith(_TARGET) and hasattr(self, f"_{action}"):
                body = json.loads(Request(environ).get_data())
                return getattr(self, f"_{action}")(body)(environ, start_response)
            return moto(environ, start_response)

        self._server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=_Quiet)
        self.url = f"http://127.0.0.1:{self._server.port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()

    def client(self, name: str):
        return boto3.client(
            name,
            endpoint_url=self.url,
            region_name=REGION,
            aws_access_key_id="testing",
            aws_secret_access_key="testing",
        )

    def make_role(self) -> None:
        iam = self.client("iam")
        with contextlib.suppress(iam.exceptions.EntityAlreadyExistsException):  # moto keeps what another module made
            iam.create_role(RoleName="training", AssumeRolePolicyDocument=json.dumps(TRUST))

    def log(self, name: str, stream: str, lines: list[str]) -> None:
        """Put lines where SageMaker puts a host's output."""
        logs, group = self.client("logs"), "/aws/sagemaker/TrainingJobs"
        for make, more in (
            (logs.create_log_group, {}),
            (logs.create_log_stream, {"logStreamName": f"{name}/{stream}"}),
        ):
            with contextlib.suppress(logs.exceptions.ResourceAlreadyExistsException):
                make(logGroupName=group, **more)
        now = int(time.time() * 1000)
        events = [{"timestamp": now + index, "message": line or " "} for index, line in enumerate(lines)]
        for begin in range(0, len(events), 1000):
            logs.put_log_events(
                logGroupName=group, logStreamName=f"{name}/{stream}", logEvents=events[begin : begin + 1000]
            )

    def _CreateTrainingJob(self, body: dict) -> Response:
        report = ParamValidator().validate(body, self._shape)
        name = body.get("TrainingJobName", "")
        if report.has_errors():
            return _error(400, "ValidationException", report.generate_report())
        if name in self.jobs:
            return _error(400, "ResourceInUse", f"Training job names must be unique: {name}")
        self.requests[name] = body
        job = {
            **body,
            "TrainingJobArn": f"arn:aws:sagemaker:{REGION}:123456789012:training-job/{name}",
            "TrainingJobStatus": "InProgress",
            "SecondaryStatus": "Starting",
            "CreationTime": _now(),
            "ModelArtifacts": {
                "S3ModelArtifacts": f"{body['OutputDataConfig']['S3OutputPath'].rstrip('/')}/{name}/output/model.tar.gz"
            },
        }
        self.jobs[name] = job
        threading.Thread(target=self._run, args=(name,), daemon=True).start()
        return _json({"TrainingJobArn": job["TrainingJobArn"]})

    def _run(self, name: str) -> None:
        job = self.jobs[name]
        job |= {"SecondaryStatus": "Training", "TrainingStartTime": _now()}
        status, reason = ("Completed", "") if self.run_job is None else self.run_job(self.requests[name])
        if name in self.stopped:
            status = "Stopped"
        end = {"TrainingEndTime": _now(), "BillableTimeInSeconds": 1, "TrainingTimeInSeconds": 2}
        job |= end | ({"FailureReason": reason} if reason else {})
        job |= {"TrainingJobStatus": status, "SecondaryStatus": status}

    def _DescribeTrainingJob(self, body: dict) -> Response:
        job = self.jobs.get(body["TrainingJobName"])
        if job is None:
            return _error(400, "ValidationException", "Requested resource not found.")
        return _json(job)

    def _ListTrainingJobs(self, body: dict) -> Response:
        names = ("TrainingJobName", "TrainingJobArn", "CreationTime", "TrainingEndTime", "TrainingJobStatus")
        found = [{key: job[key] for key in names if key in job} for job in reversed(self.jobs.values())]
        wanted = body.get("NameContains", "")
        found = [job for job in found if wanted in job["TrainingJobName"]]
        return _json({"TrainingJobSummaries": found[: body.get("MaxResults", 10)]})

    def _batch(self, path: str, body: dict) -> Response:
        """A queue of AWS Batch: it starts a job at the second look, under a name of its own."""
        if path.endswith("submitservicejob"):
            self.queued[body["jobName"]] = [body, 0]
            name = body["jobName"]
            return _json(
                {"jobArn": f"arn:aws:batch:{REGION}:123456789012:service-job/1", "jobName": name, "jobId": name}
            )
        waiting = self.queued[body["jobId"]]
        submitted, waiting[1] = waiting[0], waiting[1] + 1
        about = {
            "jobId": body["jobId"],
            "jobName": body["jobId"],
            "jobQueue": submitted["jobQueue"],
            "startedAt": 0,
            "serviceJobType": submitted["serviceJobType"],
            "status": "RUNNABLE",
        }
        if waiting[1] == 1:
            return _json(about)
        request = json.loads(submitted["serviceRequestPayload"])
        name = f"{request['TrainingJobName']}-attempt"
        if name not in self.jobs:
            answer = self._CreateTrainingJob({**request, "TrainingJobName": name})
            if answer.status_code != 200:
                return _json({**about, "status": "FAILED", "statusReason": answer.get_data(as_text=True)})
        arn = self.jobs[name]["TrainingJobArn"]
        return _json(
            {
                **about,
                "status": "RUNNING",
                "latestAttempt": {"serviceResourceId": {"name": "TrainingJobArn", "value": arn}},
            }
        )

    def _StopTrainingJob(self, body: dict) -> Response:
        name = body["TrainingJobName"]
        if name not in self.jobs:
            return _error(400, "ValidationException", "Requested resource not found.")
        self.stopped.add(name)
        return _json({})


class _Quiet(WSGIRequestHandler):
    def log_request(self, *_):
        """Nothing."""


def _now() -> float:
    return datetime.now(timezone.utc).timestamp()


def _json(content: dict) -> Response:
    return Response(json.dumps(content), content_type="application/x-amz-json-1.1")


def _error(status: int, code: str, message: str) -> Response:
    body = json.dumps({"__type": code, "message": message})
    return Response(body, status=status, content_type="application/x-amz-json-1.1")


def _simulated(body: bytes) -> Response:
    actions = [value for name, value in parse_qsl(body.decode()) if name.startswith("ActionNames.member.")]
    members = "".join(
        f"<member><EvalActionName>{action}</EvalActionName><EvalResourceName>*</EvalResourceName>"
        "<EvalDecision>allowed</EvalDecision></member>"
        for action in actions
    )
    results = f"<EvaluationResults>{members}</EvaluationResults><IsTruncated>false</IsTruncated>"
    name = "SimulatePrincipalPolicy"
    text = f'<{name}Response xmlns="https://iam.amazonaws.com/doc/2010-05-08/"><{name}Result>{results}</{name}Result></{name}Response>'
    return Response(text, content_type="text/xml")
