"""A subject as a process: one JSON request a line on stdin, one answer a line back."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from .subject import Subject, measure, outcome, ready
from .workfile import Work


def serve(kind: type[Subject]) -> None:
    """Answers requests until stdin ends. An exception ends the process, with its text on stderr.

    Answers go to the descriptor that the last argument names.
    """
    answers = os.fdopen(int(sys.argv[-1]), "w")
    subject: Subject | None = None
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "prepare":
            subject, answer = _prepare(kind, request)
        elif subject is None:
            raise RuntimeError(f"{request['do']} came before prepare")
        else:
            answer = _answer(subject, request)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _prepare(kind: type[Subject], request: dict[str, Any]) -> tuple[Subject | None, dict[str, Any]]:
    try:
        versions = kind.versions()
        work = Work.read(Path(request["work"]))
        subject = kind(work, request["threads"], request["optimizer"])
        if request["filled"]:
            subject.fill()
    except ModuleNotFoundError as error:
        return None, {"missing": f"{error}; build its environment: make bench-peers"}
    return subject, {"versions": versions}


def _answer(subject: Subject, request: dict[str, Any]) -> dict[str, Any]:
    case = request["operation"], request["access"], request["output"]
    if request["do"] == "place":
        ready(subject, request["operation"], request["access"])
        return {}
    if request["do"] == "measure":
        return {"ms": measure(subject, *case, request["calls"])}
    if request["do"] == "outcome":
        np.save(request["to"], outcome(subject, *case))
        return {}
    raise RuntimeError(f"unknown request {request['do']!r}")
