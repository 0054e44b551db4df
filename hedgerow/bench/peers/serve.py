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
    made: list[Subject] = []
    try:
        for line in sys.stdin:
            answers.write(json.dumps(_do(kind, made, json.loads(line))) + "\n")
            answers.flush()
    finally:
        for subject in made:
            subject.leave()


def _do(kind: type[Subject], made: list[Subject], request: dict[str, Any]) -> dict[str, Any]:
    if request["do"] == "prepare":
        return _prepare(kind, made, request)
    if not made:
        raise RuntimeError(f"{request['do']} came before prepare")
    return _answer(made[-1], request)


def _prepare(kind: type[Subject], made: list[Subject], request: dict[str, Any]) -> dict[str, Any]:
    try:
        versions = kind.versions()
        work = Work.read(Path(request["work"]))
        made.append(kind(work, request["threads"], request["optimizer"]))
        if request["filled"]:
            made[-1].fill()
    except ModuleNotFoundError as error:
        return {"missing": f"{error}; build its environment: make bench-peers"}
    return {"versions": versions}


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
