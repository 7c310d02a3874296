"""What a handler was certified for, as JUnit's XML for CI and as one page for people."""

import html
from collections.abc import Sequence
from typing import Final
from xml.etree import ElementTree as ET

from forewarn.testing.certify import HandlerVerdict, Result

_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
  color: #17202b; background: #fff }
h1 { font-size: 1.4rem } code, pre { font: 13px/1.45 ui-monospace, monospace }
pre { background: #f4f5f7; padding: .7rem; overflow-x: auto; white-space: pre-wrap }
table { border-collapse: collapse; width: 100% } td, th { text-align: left; padding: .3rem .6rem;
  border-top: 1px solid #d5dae0; vertical-align: top }
.passed { color: #0f766e } .failed { color: #b91c1c; font-weight: 600 } .skipped { color: #5d6b7a }
@media (prefers-color-scheme: dark) { body { color: #e4eaf1; background: #0c1117 }
  pre { background: #141b23 } td, th { border-color: #33404d }
  .passed { color: #2dd4bf } .failed { color: #f87171 } .skipped { color: #8b9aab } }
"""


def junit(command: Sequence[str], results: Sequence[Result]) -> str:
    """Return JUnit's XML: one suite, a test case for each scenario."""
    counts = _counts(results)
    suite = ET.Element(
        "testsuite",
        name=_xml(" ".join(command)),
        tests=str(len(results)),
        failures=str(counts[HandlerVerdict.FAILED]),
        skipped=str(counts[HandlerVerdict.SKIPPED]),
        errors="0",
        time=f"{max((each.seconds for each in results), default=0.0):.3f}",
    )
    for each in results:
        case = ET.SubElement(
            suite,
            "testcase",
            classname="forewarn.certify",
            name=each.name,
            time=f"{each.seconds:.3f}",
        )
        if each.verdict is HandlerVerdict.SKIPPED:
            ET.SubElement(case, "skipped", message=_xml(each.message))
        elif each.verdict is HandlerVerdict.FAILED:
            failure = ET.SubElement(case, "failure", message=_xml(each.message))
            failure.text = _xml(each.exchange)
        if each.output:
            ET.SubElement(case, "system-out").text = _xml(each.output)
    return ET.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def page(command: Sequence[str], results: Sequence[Result]) -> str:
    """Return one page of HTML, which needs nothing else."""
    counted = summary(results)
    rows = "".join(
        f'<tr><td class="{each.verdict}">{each.verdict}</td><td><code>{each.name}</code></td>'
        f"<td>{html.escape(each.about)}{_details(each)}</td><td>{each.seconds:.1f} s</td></tr>\n"
        for each in results
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>Certified: {counted}</title><style>{_STYLE}</style></head><body>\n"
        f"<h1>{counted}</h1>\n<p><code>{html.escape(' '.join(command))}</code></p>\n"
        "<table><thead><tr><th>verdict</th><th>scenario</th><th>what happens</th><th>took</th></tr>"
        f"</thead><tbody>\n{rows}</tbody></table>\n</body></html>\n"
    )


def summary(results: Sequence[Result]) -> str:
    """Return how many scenarios have each verdict, such as `25 passed, 1 skipped`."""
    return ", ".join(f"{count} {verdict}" for verdict, count in _counts(results).items() if count)


def _counts(results: Sequence[Result]) -> dict[HandlerVerdict, int]:
    return {verdict: sum(each.verdict is verdict for each in results) for verdict in HandlerVerdict}


def _details(result: Result) -> str:
    if not result.message:
        return ""
    text = f"<p>{html.escape(result.message)}</p>"
    for summary, shown in (("the exchange", result.exchange), ("its output", result.output)):
        if shown:
            text += (
                f"<details><summary>{summary}</summary><pre>{html.escape(shown)}</pre></details>"
            )
    return text


def _xml(text: str) -> str:
    """Return a text without what XML cannot hold."""
    return "".join(each for each in text if each.isprintable() or each in "\n\t")
