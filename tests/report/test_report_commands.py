"""`suture report`, `plot` and `table` as people type them."""

from __future__ import annotations

from pathlib import Path

import pytest

from suture.cli import main


def test_report_writes_a_page_figures_and_tables(
    comparison: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, pictures = tmp_path / "page.html", tmp_path / "pictures"
    arguments = ["report", str(comparison / "fedavg-seed0"), str(comparison / "local-seed0"), "--out", str(out)]
    assert main([*arguments, "--figures", str(pictures), "--format", "latex"]) == 0
    told = capsys.readouterr().err
    assert f"wrote {out}" in told and "next, for a paper: suture table" in told
    page = out.read_text()
    assert page.startswith("<!doctype html>") and "Content-Security-Policy" in page and "fedavg" in page
    for address in ('src="', "@import", "url("):  # nothing is loaded
        assert address not in page.split("<script>")[0]
    assert {"curves.svg", "curves.png", "results.tex", "differences.tex"} <= {path.name for path in pictures.iterdir()}


def test_plot(comparison: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "similarity.svg"
    run = str(comparison / "fedpub-seed0")
    assert main(["plot", "similarity", run, "--choose", "round=1", "--out", str(out), "--dark", "--title"]) == 0
    first = out.read_text()
    assert "FED-PUB: whose models behave alike" in first
    assert main(["plot", "similarity", run, "--choose", "round=4", "--out", str(out), "--dark", "--title"]) == 0
    assert out.read_text() != first
    assert main(["plot", "list", run]) == 0
    assert "agreement" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["plot", "curvs", "RUN"], "did you mean 'curves'"),
        (["plot", "learned", "RUN"], "these runs do not hold what learned shows"),
        (["plot", "curves", "RUN", "--choose", "round=3"], "of curves can be chosen: set"),
        (["plot", "confusion", "RUN", "--choose", "method=fedfoo"], "unknown method 'fedfoo'"),
        (["plot", "curves", "RUN", "--out", "x.gif"], "must end with .svg, .png, .pdf"),
        (["table", "RUN", "--what", "result"], "did you mean 'results'"),
        (["table", "RUN", "--format", "html"], "unknown format 'html'"),
        (["table", "RUN", "--what", "differences", "--against", "fedprox"], "unknown method 'fedprox'"),
        (["report", "RUN", "--format", "doc"], "unknown format 'doc'"),
        (["report", "RUN", "--out", "."], "is a folder; give a file"),
        (["report", "nowhere"], "holds no run"),
    ],
)
def test_what_was_typed_wrong_is_said(
    comparison: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    assert main([str(comparison) if one == "RUN" else one for one in arguments]) == 2
    assert sentence in capsys.readouterr().err


def test_table(comparison: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["table", str(comparison)]) == 0
    text = capsys.readouterr().out
    assert "client mean *" in text and "* best, + second best" in text
    out = tmp_path / "t.tex"
    assert (
        main(
            [
                "table",
                str(comparison),
                "--what",
                "differences",
                "--against",
                "fedavg",
                "--format",
                "latex",
                "--out",
                str(out),
            ]
        )
        == 0
    )
    assert r"against fedavg" in out.read_text() and r"\begin{tabular}{lrrrrl}" in out.read_text()
