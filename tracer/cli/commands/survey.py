"""Measure what every head does over many photos, as rows of a Parquet file.

For each photo and head, it measures the mean attention distance, the entropy of the weights, the weight on CLS and
registers, and the effect of switching the head off on the answer, and on the loss where the label is known (the name of
a photo's folder, or the column `label`). For each photo, it measures the answer with the most attended quarter of its
patches hidden, beside as many hidden at random and in the centre. A survey that was killed continues where it stopped.
With --ray, the machines of a cluster compute the rows; they need the photos at the same path.
"""

from __future__ import annotations

import argparse
import sys
from urllib.parse import quote_plus

import tracer
from tracer.survey import Survey
from tracer.utils import errors

PAGE = "http://127.0.0.1:8501/attention?model={}&over=survey"
"""Where the app opens a survey of a model, at its default address."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add NAME, --data, --out, --ray."""
    parser.add_argument("name", metavar="NAME", help="a model that takes photos")
    parser.add_argument("--data", metavar="FOLDER|PARQUET", required=True, help="a folder of photos, or a Parquet file")
    parser.add_argument("--out", metavar="F", required=True, help="the Parquet file of the rows")
    parser.add_argument("--ray", metavar="ADDRESS", default="", help="a Ray cluster that computes the rows, or auto")


def run(options: argparse.Namespace) -> int:
    """Run the survey with a bar on standard error, and print the file. Photos that can't be read are listed there."""
    tqdm = errors.require("tqdm", "a survey").tqdm
    survey, bad = Survey(tracer.load(options.name), options.data, options.out, options.ray), 0
    with tqdm(total=len(survey), initial=survey.progress(), unit="photo", desc="survey", file=sys.stderr) as bar:
        for count, problems in survey.run():
            for photo in problems:
                tqdm.write(f"{photo.name}: {photo.problem}", file=sys.stderr)
            bar.update(count)
            bad += len(problems)
    if bad:
        print(f"{bad} {'photo' if bad == 1 else 'photos'} could not be read", file=sys.stderr)
    page = PAGE.format(quote_plus(options.name))
    print(f"to look at it: python -m tracer app, and open {options.out} at {page}", file=sys.stderr)
    print(options.out)
    return 0
